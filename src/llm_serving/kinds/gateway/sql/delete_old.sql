-- What is older, of the audit and of the usage.
DELETE FROM blueprint_audit WHERE at < now() - {age};
DELETE FROM blueprint_meter WHERE at < now() - {age};
-- The last row of before stays: later counts are those since.
DELETE FROM blueprint_door AS old WHERE at < now() - {age} AND EXISTS (
  SELECT FROM blueprint_door AS newer WHERE newer.at > old.at AND newer.at < now() - {age}
    AND (newer.deployment, newer.router, newer.team, newer.model) = (old.deployment, old.router, old.team, old.model)
);
-- LiteLLM's sums of days, but those of this month, by which budgets are warned of.
DO $$
DECLARE
  name text;
BEGIN
  FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND starts_with(tablename, 'LiteLLM_Daily') LOOP
    EXECUTE format('DELETE FROM %I WHERE date < $1', name) USING to_char(
      least(now() AT TIME ZONE 'UTC' - {age}, date_trunc('month', now() AT TIME ZONE 'UTC')), 'YYYY-MM-DD');
  END LOOP;
END $$;
-- Names of tools in requests, and keys that were revoked.
DELETE FROM "LiteLLM_SpendLogToolIndex" WHERE start_time < now() AT TIME ZONE 'UTC' - {age};
DELETE FROM "LiteLLM_ToolTable" WHERE coalesce(last_used_at, created_at) < now() AT TIME ZONE 'UTC' - {age};
DELETE FROM "LiteLLM_DeletedVerificationToken" WHERE deleted_at < now() AT TIME ZONE 'UTC' - {age};
-- Users that requests named, which former versions recorded.
DELETE FROM "LiteLLM_EndUserTable";
-- A part each minute: after a shorter time to keep, all of it would take longer than anyone waits, and be undone.
DELETE FROM "LiteLLM_SpendLogs" WHERE request_id IN (
  SELECT request_id FROM "LiteLLM_SpendLogs" WHERE "startTime" < now() AT TIME ZONE 'UTC' - {age} LIMIT 200000
);
