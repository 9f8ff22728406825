//! Values of statement parameters.

use tiberius::Query;

/// A value for `@P1`, `@P2`, … The statement casts it to the type it is compared with.
#[derive(Clone, Debug, PartialEq)]
pub enum Param {
    /// `NULL`, of whatever type the statement casts it to.
    Null,
    /// A `bit`.
    Bool(bool),
    /// An `int`, for functions that do not accept `bigint`.
    Int(i32),
    /// A `bigint`.
    BigInt(i64),
    /// A `real`.
    Real(f32),
    /// A `float`.
    Float(f64),
    /// An `nvarchar`.
    Text(String),
    /// A `varbinary`.
    Bytes(Vec<u8>),
}

impl Param {
    /// Adds the value to a query.
    pub(super) fn bind<'a>(&'a self, query: &mut Query<'a>) {
        match self {
            Self::Null => query.bind(Option::<&str>::None),
            Self::Bool(value) => query.bind(*value),
            Self::Int(value) => query.bind(*value),
            Self::BigInt(value) => query.bind(*value),
            Self::Real(value) => query.bind(*value),
            Self::Float(value) => query.bind(*value),
            Self::Text(value) => query.bind(value.as_str()),
            Self::Bytes(value) => query.bind(value.as_slice()),
        }
    }
}
