-- What is older, of the audit and of the usage.
DELETE FROM blueprint_audit WHERE at < now() - {age};
DELETE FROM blueprint_meter WHERE at < now() - {age};
-- The last row of before stays: later counts are those since.
DELETE FROM blueprint_door AS old WHERE at < now() - {age} AND EXISTS (
  SELECT FROM blueprint_door AS newer WHERE newer.at > old.at AND newer.at < now() - {age}
    AND (newer.deployment, newer.router, newer.team, newer.model) = (old.deployment, old.router, old.team, old.model)
);
-- A part each minute: after a shorter time to keep, all of it would take longer than anyone waits, and be undone.
DELETE FROM "LiteLLM_SpendLogs" WHERE request_id IN (
  SELECT request_id FROM "LiteLLM_SpendLogs" WHERE "startTime" < now() AT TIME ZONE 'UTC' - {age} LIMIT 200000
);
