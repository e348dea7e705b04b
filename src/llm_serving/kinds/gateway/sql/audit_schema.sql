-- The audit, for LiteLLM's tables; it can be applied again. The limits are what an administrator decides of a team: LiteLLM
-- updates its row at each request.
CREATE TABLE IF NOT EXISTS blueprint_audit (
  at timestamptz DEFAULT now(), event text, team text, key text, detail text);
CREATE INDEX IF NOT EXISTS blueprint_audit_at ON blueprint_audit (at);
CREATE OR REPLACE FUNCTION blueprint_audit_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO blueprint_audit (event, team, key, detail) VALUES ('key created', NEW.team_id, NEW.token, NEW.key_alias);
  ELSIF TG_OP = 'DELETE' THEN
    INSERT INTO blueprint_audit (event, team, key, detail) VALUES ('key revoked', OLD.team_id, OLD.token, OLD.key_alias);
  ELSIF (NEW.blocked, NEW.models, NEW.team_id, NEW.max_budget, NEW.expires, NEW.key_alias) IS DISTINCT FROM
      (OLD.blocked, OLD.models, OLD.team_id, OLD.max_budget, OLD.expires, OLD.key_alias) THEN
    INSERT INTO blueprint_audit (event, team, key, detail) VALUES ('key changed', NEW.team_id, NEW.token, NEW.key_alias);
  END IF;
  RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION blueprint_audit_team() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  now_limits jsonb := CASE WHEN TG_OP = 'DELETE' THEN NULL ELSE {new_limits} END;
  old_limits jsonb := CASE WHEN TG_OP = 'INSERT' THEN NULL ELSE {old_limits} END;
BEGIN
  IF now_limits IS DISTINCT FROM old_limits THEN
    INSERT INTO blueprint_audit (event, team, detail)
    VALUES ('team ' || CASE TG_OP WHEN 'INSERT' THEN 'created' WHEN 'DELETE' THEN 'deleted' ELSE 'changed' END,
      CASE WHEN TG_OP = 'DELETE' THEN OLD.team_id ELSE NEW.team_id END, now_limits::text);
  END IF;
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER blueprint_audit AFTER INSERT OR UPDATE OR DELETE ON "LiteLLM_VerificationToken"
FOR EACH ROW EXECUTE FUNCTION blueprint_audit_key();
CREATE OR REPLACE TRIGGER blueprint_audit AFTER INSERT OR UPDATE OR DELETE ON "LiteLLM_TeamTable"
FOR EACH ROW EXECUTE FUNCTION blueprint_audit_team();
-- Of an error's message, which may quote the request, what usage_requests.sql looks for is recorded.
-- LiteLLM leaves out a record whose id is there already (skip_duplicates), and takes the engine's, which vLLM makes of the
-- caller's X-Request-Id: of several calls with one id, as for a page, all but the first had none.
CREATE OR REPLACE FUNCTION blueprint_request_id() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.request_id := concat_ws(' ', NEW.request_id, NEW.litellm_call_id, NEW."startTime");
  IF jsonb_typeof(NEW.metadata -> 'error_information') = 'object' THEN
    NEW.metadata := NEW.metadata || jsonb_build_object('error_information',
      (NEW.metadata -> 'error_information') - 'traceback' || jsonb_build_object('error_message',
        substring(NEW.metadata -> 'error_information' ->> 'error_message' FROM '{refusal}')));
  END IF;
  RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER blueprint_request_id BEFORE INSERT ON "LiteLLM_SpendLogs"
FOR EACH ROW EXECUTE FUNCTION blueprint_request_id();
