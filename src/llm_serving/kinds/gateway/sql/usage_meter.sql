-- The meter's rows of a time: from the last row before it on, so that what months cost adds up to all.
SELECT deployment, extract(epoch FROM at) AS at, usd_h, tokens
FROM blueprint_meter LEFT JOIN (
  SELECT deployment, max(at) AS last_before FROM blueprint_meter WHERE at < {start} GROUP BY deployment
) AS earlier USING (deployment)
WHERE at < {end} AND at >= coalesce(last_before, {start})
ORDER BY at
