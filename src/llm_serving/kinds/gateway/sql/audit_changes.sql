-- Changes of keys and teams of a time.
SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS at, event, coalesce(team, '') AS team,
  coalesce(key, '') AS key, coalesce(detail, '') AS detail
FROM blueprint_audit WHERE at >= {start} AND at < {end}
