//! Validation by JSON Schema 2020-12, with formats and encodings.

use boon::{Compiler, Schemas};
use serde_json::{Map, Value as Json};

const NAME: &str = "https://schema.invalid/tested";

/// A schema that satisfies the rules of its dialect.
pub struct Validator {
    schemas: Schemas,
    index: boon::SchemaIndex,
}

impl std::fmt::Debug for Validator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Validator").finish_non_exhaustive()
    }
}

impl Validator {
    /// Returns the validator of a schema. Objects may only have the fields that it lists, so that a field it forgot is
    /// found.
    pub fn strict(mut schema: Json) -> Self {
        close(&mut schema);
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.enable_format_assertions();
        compiler.enable_content_assertions();
        compiler.add_resource(NAME, schema).unwrap();
        let index = compiler.compile(NAME, &mut schemas).unwrap();
        Self { schemas, index }
    }

    /// Checks a value.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and where.
    pub fn check(&self, value: &Json) -> Result<(), String> {
        self.schemas.validate(value, self.index).map_err(|error| format!("{error:#}"))
    }
}

/// Forbids other fields in all objects; a condition such as `if` lists only some.
fn close(schema: &mut Json) {
    match schema {
        Json::Object(fields) => {
            if is_closable(fields) {
                fields.insert("additionalProperties".to_owned(), false.into());
            }
            fields.values_mut().for_each(close);
        }
        Json::Array(items) => items.iter_mut().for_each(close),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
    }
}

fn is_closable(schema: &Map<String, Json>) -> bool {
    schema.get("type").is_some_and(|name| name == "object") && schema.contains_key("required")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_formats_and_encodings_are_checked() {
        let text = |keyword: &str, value: &str| json!({ "type": "string", keyword: value });
        let validator = Validator::strict(json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "required": ["a"],
            "properties": { "a": text("format", "date"), "b": text("contentEncoding", "base64") },
        }));
        assert_eq!(validator.check(&json!({ "a": "2020-02-29", "b": "AP8=" })), Ok(()));
        for wrong in [
            json!({ "a": "2021-02-29" }),
            json!({ "a": "2020-02-29", "b": "%" }),
            json!({ "a": "2020-02-29", "c": 1 }),
            json!({}),
        ] {
            assert!(validator.check(&wrong).is_err(), "{wrong}");
        }
    }
}
