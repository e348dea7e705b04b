-- What teams used at each router: changed counters only. The first rows of a deployment say what was used before; one
-- without a team stands for nobody's use.
INSERT INTO blueprint_door (deployment, router, team, model, is_first, requests, input_tokens, output_tokens)
SELECT {deployment}, router, team, model, NOT EXISTS (SELECT FROM blueprint_door WHERE deployment = {deployment}), requests,
  input_tokens, output_tokens
FROM (VALUES {values}) AS counted (router, team, model, requests, input_tokens, output_tokens)
WHERE NOT EXISTS (
  SELECT FROM (
    SELECT requests, input_tokens, output_tokens FROM blueprint_door AS rows
    WHERE deployment = {deployment} AND (rows.router, rows.team, rows.model) = (counted.router, counted.team, counted.model)
    ORDER BY at DESC LIMIT 1
  ) AS last
  WHERE (last.requests, last.input_tokens, last.output_tokens)
    = (counted.requests, counted.input_tokens, counted.output_tokens)
);
