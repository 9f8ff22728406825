-- A table to poll, for a database created with SQL_DEMO=true. Does nothing if the table exists.
IF OBJECT_ID(N'dbo.orders') IS NULL
BEGIN
  CREATE TABLE dbo.orders (
    id int IDENTITY PRIMARY KEY,
    customer nvarchar(100) NOT NULL,
    amount decimal(9, 2) NOT NULL,
    version rowversion
  );
  CREATE UNIQUE INDEX ix_orders_version ON dbo.orders (version);
  INSERT INTO dbo.orders (customer, amount) VALUES (N'Ada', 12.50), (N'Grace', 99.00);
END;
GO
