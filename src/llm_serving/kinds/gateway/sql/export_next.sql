-- From when on nothing was exported: at first the hour of the first entry, that teams were created.
SELECT coalesce(
  (SELECT until FROM blueprint_export),
  (SELECT extract(epoch FROM date_trunc('hour', min(at))) FROM blueprint_audit)
) AS start
