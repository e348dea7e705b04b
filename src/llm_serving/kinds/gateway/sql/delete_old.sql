-- What is older, of the audit and of the usage.
DELETE FROM blueprint_audit WHERE at < now() - {age};
DELETE FROM blueprint_meter WHERE at < now() - {age};
-- The last row of before stays: later counts are those since.
DELETE FROM blueprint_door AS old WHERE at < now() - {age} AND EXISTS (
  SELECT FROM blueprint_door AS newer WHERE newer.at > old.at AND newer.at < now() - {age}
    AND (newer.deployment, newer.router, newer.team, newer.model) = (old.deployment, old.router, old.team, old.model)
);
DELETE FROM "LiteLLM_SpendLogs" WHERE "startTime" < now() AT TIME ZONE 'UTC' - {age};
