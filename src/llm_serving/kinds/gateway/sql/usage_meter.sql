-- The meter's rows of a time: from the last row before it on, so that what months cost adds up to all.
SELECT deployment, extract(epoch FROM at) AS at, usd_h, tokens FROM blueprint_meter AS rows
WHERE at < {end} AND at >= coalesce(
  (SELECT max(at) FROM blueprint_meter AS before WHERE before.deployment = rows.deployment AND before.at < {start}),
  {start})
ORDER BY at
