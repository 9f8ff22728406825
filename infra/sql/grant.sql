-- Grants the app exactly the rights that it needs in one database. Run by a Microsoft Entra administrator of the server, as
-- often as you like: by grant.sh, or by sqlcmd with these variables. Lists are separated by `;`, and `none` is an empty one.
--
--   IDENTITY_NAME, IDENTITY_CLIENT_ID   the app's identity: its name, and its client id
--   SOURCE_TABLES    tables that pollers read, such as dbo.orders;dbo.customers
--   TRACKED_TABLES   those of them that are read in the mode change_tracking
--   TARGET_TABLES    tables that the handler sql writes to
--   FENCE_TABLE, LEDGER_TABLE   for the handler sql; created with what `highwater ddl fence` and `ddl ledger` print
--   STATE_TABLE, JOURNAL_TABLE   for the state store sql; created with what `highwater ddl state` and `ddl journal` print
--
-- It revokes nothing: revoke manually what a poller no longer needs.
SET NOCOUNT ON;
SET XACT_ABORT ON;

DECLARE @user sysname = N'$(IDENTITY_NAME)';
-- SQL identifies a managed identity by its client id. With it, the user is created without a look-up in Microsoft Graph,
-- so a service principal can run this, and two identities with the same name are not confused.
DECLARE @sid varbinary(16) = CAST(CAST('$(IDENTITY_CLIENT_ID)' AS uniqueidentifier) AS varbinary(16));
DECLARE @statements nvarchar(max);
IF EXISTS (SELECT 1 FROM sys.database_principals WHERE name = @user AND sid <> @sid)
BEGIN
  DECLARE @other nvarchar(2048) = N'User ' + @user + N' belongs to another identity, such as a deleted one with that name. '
    + N'Remove it and run this again: DROP USER ' + QUOTENAME(@user) + N';';
  THROW 50000, @other, 1;
END;
IF NOT EXISTS (SELECT 1 FROM sys.database_principals WHERE name = @user)
BEGIN
  SET @statements = N'CREATE USER ' + QUOTENAME(@user) + N' WITH SID = ' + CONVERT(varchar(34), @sid, 1) + N', TYPE = E';
  EXEC (@statements);
  PRINT N'Created user ' + @user;
END;

DECLARE @rights TABLE (permission nvarchar(60) NOT NULL, tables nvarchar(max) NOT NULL);

-- Sources.
INSERT INTO @rights VALUES (N'SELECT', N'$(SOURCE_TABLES)');
INSERT INTO @rights VALUES (N'VIEW CHANGE TRACKING', N'$(TRACKED_TABLES)');

-- The handler sql: its targets, its fence, its ledger.
INSERT INTO @rights VALUES (N'SELECT', N'$(TARGET_TABLES)');
INSERT INTO @rights VALUES (N'INSERT', N'$(TARGET_TABLES)');
INSERT INTO @rights VALUES (N'UPDATE', N'$(TARGET_TABLES)');
INSERT INTO @rights VALUES (N'DELETE', N'$(TARGET_TABLES)');
INSERT INTO @rights VALUES (N'SELECT', N'$(FENCE_TABLE)');
INSERT INTO @rights VALUES (N'INSERT', N'$(FENCE_TABLE)');
INSERT INTO @rights VALUES (N'UPDATE', N'$(FENCE_TABLE)');
INSERT INTO @rights VALUES (N'SELECT', N'$(LEDGER_TABLE)');
INSERT INTO @rights VALUES (N'INSERT', N'$(LEDGER_TABLE)');
INSERT INTO @rights VALUES (N'DELETE', N'$(LEDGER_TABLE)');

-- The state store sql.
INSERT INTO @rights VALUES (N'SELECT', N'$(STATE_TABLE)');
INSERT INTO @rights VALUES (N'INSERT', N'$(STATE_TABLE)');
INSERT INTO @rights VALUES (N'UPDATE', N'$(STATE_TABLE)');
INSERT INTO @rights VALUES (N'DELETE', N'$(STATE_TABLE)');
INSERT INTO @rights VALUES (N'SELECT', N'$(JOURNAL_TABLE)');
INSERT INTO @rights VALUES (N'INSERT', N'$(JOURNAL_TABLE)');
INSERT INTO @rights VALUES (N'DELETE', N'$(JOURNAL_TABLE)');

DECLARE @grants TABLE (permission nvarchar(60) NOT NULL, name nvarchar(517) NOT NULL);
INSERT INTO @grants
SELECT permission, TRIM(value) FROM @rights CROSS APPLY STRING_SPLIT(tables, N';')
WHERE TRIM(value) NOT IN (N'', N'none');

DECLARE @missing nvarchar(max) =
  (SELECT STRING_AGG(name, N', ') FROM (SELECT DISTINCT name FROM @grants WHERE OBJECT_ID(name) IS NULL) AS m);
IF @missing IS NOT NULL
BEGIN
  DECLARE @message nvarchar(2048) =
    LEFT(N'Not found in database ' + DB_NAME() + N', so nothing was granted: ' + @missing, 2048);
  THROW 50000, @message, 1;
END;

-- Use names from the catalog, so that no text of a variable becomes part of a statement.
SET @statements = (
  SELECT STRING_AGG(CAST(N'GRANT ' + permission + N' ON ' + QUOTENAME(OBJECT_SCHEMA_NAME(OBJECT_ID(name))) + N'.'
    + QUOTENAME(OBJECT_NAME(OBJECT_ID(name))) + N' TO ' + QUOTENAME(@user) + N';' AS nvarchar(max)), NCHAR(10))
  FROM @grants);
IF @statements IS NOT NULL
BEGIN
  EXEC (@statements);
  PRINT @statements;
END;
GO
