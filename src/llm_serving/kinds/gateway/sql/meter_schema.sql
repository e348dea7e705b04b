-- The engines' counters, and those of routers with keys.
CREATE TABLE IF NOT EXISTS blueprint_meter (
  deployment text, at timestamptz DEFAULT now(), usd_h float8, tokens jsonb);
CREATE TABLE IF NOT EXISTS blueprint_engines (deployment text PRIMARY KEY, tokens jsonb, made float8 DEFAULT 0);
CREATE TABLE IF NOT EXISTS blueprint_door (
  deployment text, router text, team text, model text, at timestamptz DEFAULT now(), is_first bool,
  requests float8, input_tokens float8, output_tokens float8);
CREATE INDEX IF NOT EXISTS blueprint_door_place ON blueprint_door (deployment, router, team, model, at);
