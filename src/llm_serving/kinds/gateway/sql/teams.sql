-- LiteLLM's teams become those of the blueprint. What a team spent this month stays.
INSERT INTO "LiteLLM_TeamTable" AS former (
  team_id, team_alias, budget_reset_at, models, rpm_limit, tpm_limit, max_budget, budget_duration, budget_limits, blocked)
SELECT name, name, date_trunc('month', now() AT TIME ZONE 'UTC') + interval '1 month', models, requests_per_minute,
  tokens_per_minute, month, CASE WHEN month IS NOT NULL THEN '1mo' END,
  CASE WHEN day IS NOT NULL THEN jsonb_build_array(jsonb_build_object('budget_duration', '1d', 'max_budget', day, 'reset_at',
    to_char(date_trunc('day', now() AT TIME ZONE 'UTC') + interval '1 day', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))) END, false
FROM jsonb_each({teams}) AS team (name, rules),
  jsonb_to_record(rules) AS rule (models text[], requests_per_minute bigint, tokens_per_minute bigint, budget jsonb),
  jsonb_to_record(coalesce(budget, '{{}}')) AS spend (month float8, day float8)
ON CONFLICT (team_id) DO UPDATE SET models = EXCLUDED.models, rpm_limit = EXCLUDED.rpm_limit,
  tpm_limit = EXCLUDED.tpm_limit, max_budget = EXCLUDED.max_budget, budget_duration = EXCLUDED.budget_duration,
  -- The day of a team that is there ends when it would have. LiteLLM looks once a minute: a replica that starts before it saw
  -- a day's end would hide that, and what was spent would count in the new day.
  budget_limits = jsonb_set(EXCLUDED.budget_limits, '{{0,reset_at}}',
    coalesce(former.budget_limits #> '{{0,reset_at}}', EXCLUDED.budget_limits #> '{{0,reset_at}}')),
  blocked = EXCLUDED.blocked;
-- The keys of others no longer work.
UPDATE "LiteLLM_TeamTable" SET blocked = true
WHERE team_id NOT IN (SELECT jsonb_object_keys({teams}));
