-- A row of the meter, with all that a deployment's engines made since its first: a month with the counters of each would
-- take minutes to read. An engine that starts anew counts from 0; what one made before it was first seen is left out.
INSERT INTO blueprint_engines AS known (deployment, tokens) VALUES ({deployment}, {tokens})
ON CONFLICT (deployment) DO UPDATE SET tokens = known.tokens || EXCLUDED.tokens, made = known.made + (
  SELECT coalesce(sum(CASE WHEN now.value::float8 < last.value::float8 THEN now.value::float8
    ELSE now.value::float8 - last.value::float8 END), 0)
  FROM jsonb_each(EXCLUDED.tokens) AS now JOIN jsonb_each(known.tokens) AS last USING (key)
);
INSERT INTO blueprint_meter (deployment, usd_h, tokens)
SELECT deployment, {usd_h}, jsonb_build_object('all', made) FROM blueprint_engines WHERE deployment = {deployment};
