//! Several databases by name, as on a server.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    database::Database,
    session::{Engine, Session},
    tsql::lexer::{self, Token},
    types::{Command, Completion, Parameter, Reply, SqlError},
};

/// The database that every server has.
const MASTER: &str = "master";

/// The databases of a server, each for concurrent writers; clones share them.
///
/// A login selects one by name. In addition to a database's statements, sessions may `CREATE DATABASE` and
/// `DROP DATABASE`, and set options that always apply here: row versioning, and a single user.
#[derive(Clone, Debug)]
pub struct Databases(Arc<Mutex<BTreeMap<String, Database>>>);

impl Databases {
    /// Creates a server's databases: `master`, and one of this name.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be created.
    pub fn with(name: &str) -> Result<Self, SqlError> {
        let new = Self(Arc::default());
        new.create(MASTER)?;
        new.create(name)?;
        Ok(new)
    }

    fn create(&self, name: &str) -> Result<(), SqlError> {
        let mut databases = self.locked();
        if databases.contains_key(&name.to_lowercase()) {
            let text = format!("Database '{name}' already exists. Choose a different name.");
            return Err(SqlError::new(1801, 16, text));
        }
        databases.insert(name.to_lowercase(), Database::concurrent()?);
        Ok(())
    }

    /// Returns the database of a name.
    pub fn find(&self, name: &str) -> Option<Database> {
        self.locked().get(&name.to_lowercase()).cloned()
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<String, Database>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a batch in the database of a name, or about databases. Returns how many rows it wrote or
    /// returned.
    ///
    /// # Errors
    ///
    /// As [`Database::execute`]; 911 if there is no such database.
    pub fn execute(&self, database: &str, sql: &str) -> Result<u64, SqlError> {
        let replies = self.query(database, sql)?;
        Ok(replies.iter().map(Reply::rows).sum())
    }

    /// As [`Self::execute`], and returns the replies of all statements, none of which is an error.
    ///
    /// # Errors
    ///
    /// As [`Self::execute`].
    pub fn query(&self, database: &str, sql: &str) -> Result<Vec<Reply>, SqlError> {
        if let Some(done) = self.run(sql) {
            return done.map(|()| Vec::new());
        }
        let found = self.find(database).ok_or_else(|| {
            SqlError::new(911, 16, format!("Database '{database}' does not exist."))
        })?;
        found.query(sql)
    }

    /// Runs a batch about databases; [`None`] if it is about something else.
    fn run(&self, sql: &str) -> Option<Result<(), SqlError>> {
        let tokens = lexer::tokens(sql).ok()?;
        let words: Vec<&str> =
            tokens.iter().filter(|token| **token != Token::Symbol(";")).map(Token::shown).collect();
        let is = |at: usize, word: &str| {
            words.get(at).is_some_and(|have| have.eq_ignore_ascii_case(word))
        };
        let name = words.get(2).filter(|_| is(1, "DATABASE"))?;
        match words.len() {
            3 if is(0, "CREATE") => Some(self.create(name)),
            3 if is(0, "DROP") => Some(self.drop_database(name)),
            // Options of the current database are handled by that database.
            _ if is(0, "ALTER") && is(3, "SET") && !is(2, "CURRENT") => {
                let is_so = is(4, "SINGLE_USER")
                    || (is(4, "READ_COMMITTED_SNAPSHOT") && is(5, "ON"))
                    || (is(4, "ALLOW_SNAPSHOT_ISOLATION") && is(5, "ON"));
                is_so.then(|| self.find(name).map(drop).ok_or_else(|| missing(name)))
            }
            _ => None,
        }
    }

    fn drop_database(&self, name: &str) -> Result<(), SqlError> {
        if name.eq_ignore_ascii_case(MASTER) {
            return Err(SqlError::new(3708, 16, "Cannot drop the system database 'master'."));
        }
        self.locked().remove(&name.to_lowercase()).map(drop).ok_or_else(|| missing(name))
    }
}

impl Engine for Databases {
    fn connect(&self, database: &str) -> Result<Box<dyn Session>, SqlError> {
        let found = self.find(database).ok_or_else(|| {
            let text = format!("Cannot open database \"{database}\" requested by the login.");
            SqlError::new(4060, 11, text)
        })?;
        Ok(Box::new(ServerSession { databases: self.clone(), inner: found.connect(database)? }))
    }
}

fn missing(name: &str) -> SqlError {
    let text = format!("The database '{name}' does not exist, or you do not have permission.");
    SqlError::new(3701, 11, text)
}

/// A session in one database that may create others.
struct ServerSession {
    databases: Databases,
    inner: Box<dyn Session>,
}

impl Session for ServerSession {
    fn run(&mut self, sql: &str, parameters: &[Parameter]) -> Vec<Reply> {
        match self.databases.run(sql) {
            Some(Ok(())) => vec![Reply::Done(Completion { command: Command::Other, rows: None })],
            Some(Err(error)) => vec![Reply::Error(error)],
            None => self.inner.run(sql, parameters),
        }
    }

    fn leave_procedure(&mut self) {
        self.inner.leave_procedure();
    }

    fn begin(&mut self) -> Result<(), SqlError> {
        self.inner.begin()
    }

    fn commit(&mut self) -> Result<(), SqlError> {
        self.inner.commit()
    }

    fn rollback(&mut self) -> Result<(), SqlError> {
        self.inner.rollback()
    }

    fn transaction(&self) -> Option<u64> {
        self.inner.transaction()
    }

    fn rolled_back(&self) -> bool {
        self.inner.rolled_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(session: &mut dyn Session, sql: &str) -> Option<i32> {
        session.run(sql, &[]).into_iter().find_map(|reply| match reply {
            Reply::Error(error) => Some(error.number),
            Reply::Rows { .. } | Reply::Done(_) => None,
        })
    }

    #[test]
    fn databases_are_created_listed_isolated_and_dropped() {
        let databases = Databases::with("Shop").unwrap();
        let mut master = databases.connect("master").unwrap();
        assert_eq!(error(&mut *master, "CREATE DATABASE [a b];"), None);
        assert_eq!(error(&mut *master, "CREATE DATABASE [A B]"), Some(1801));
        assert_eq!(databases.execute("SHOP", "CREATE DATABASE other").unwrap(), 0);
        databases.execute("other", "CREATE TABLE dbo.T (id int)").unwrap();
        assert_eq!(databases.execute("other", "INSERT INTO dbo.T VALUES (1), (2)").unwrap(), 2);
        assert_eq!(databases.execute("none", "SELECT 1").unwrap_err().number, 911);
        let snapshots =
            "ALTER DATABASE [a b] SET READ_COMMITTED_SNAPSHOT ON WITH ROLLBACK IMMEDIATE";
        assert_eq!(error(&mut *master, snapshots), None);
        assert!(
            error(&mut *master, "ALTER DATABASE [a b] SET READ_COMMITTED_SNAPSHOT OFF").is_some()
        );
        let mut one = databases.connect("A B").unwrap();
        assert_eq!(
            error(&mut *one, "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON"),
            None
        );
        assert_eq!(error(&mut *one, "CREATE TABLE dbo.T (id int)"), None);
        assert_eq!(error(&mut *one, "SELECT id FROM dbo.T"), None);
        let mut shop = databases.connect("shop").unwrap();
        assert_eq!(error(&mut *shop, "SELECT id FROM dbo.T"), Some(208));
        assert_eq!(error(&mut *master, "DROP DATABASE [a b]"), None);
        assert_eq!(error(&mut *master, "DROP DATABASE [a b]"), Some(3701));
        assert_eq!(error(&mut *master, "DROP DATABASE master"), Some(3708));
        assert_eq!(databases.connect("a b").err().map(|error| error.number), Some(4060));
    }
}
