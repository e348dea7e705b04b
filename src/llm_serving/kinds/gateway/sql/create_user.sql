-- The user that owns the database's tables; again where it exists.
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{user}') THEN CREATE ROLE {user} LOGIN; END IF;
END $$;
ALTER ROLE {user} PASSWORD '{password}';
GRANT {user} TO CURRENT_USER;
ALTER DATABASE {user} OWNER TO {user};
