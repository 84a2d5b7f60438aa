//! Checks JSON against `docs/reference/json.schema.json`, in the part of JSON Schema (draft 2020-12) that the file uses. A
//! key that the schema does not list is an error here, although a later version may have more keys.

use serde_json::{Map, Value};
use std::sync::OnceLock;

/// The schemas of the page, by name.
pub(crate) fn definitions() -> &'static Map<String, Value> {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    let schema = SCHEMA.get_or_init(|| {
        let text = include_str!("../../../../docs/reference/json.schema.json");
        serde_json::from_str(text).expect("the schema is JSON")
    });
    schema["$defs"].as_object().expect("the schema has definitions")
}

/// Checks one line of output against the schema of this name.
#[track_caller]
pub(crate) fn check(name: &str, value: &Value) {
    let schema = definitions().get(name).unwrap_or_else(|| panic!("there is no schema `{name}`"));
    if let Err(problem) = validate(schema, value, "") {
        panic!("`{name}`: {problem} in {value}");
    }
}

fn validate(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let schema = schema.as_object().expect("a schema is an object");
    let wrong = |expected: &Value| Err(format!("{at}: {value} is not {expected}"));
    for (keyword, argument) in schema {
        match keyword.as_str() {
            "$ref" => {
                let name =
                    argument.as_str().and_then(|path| path.strip_prefix("#/$defs/")).expect("a reference");
                validate(&definitions()[name], value, at)?;
            }
            "const" if value != argument => return wrong(argument),
            "enum" if !list(argument).contains(value) => return wrong(argument),
            "type" => {
                let is_one = match argument {
                    Value::Array(types) => types.iter().any(|name| has_type(name, value)),
                    name => has_type(name, value),
                };
                if !is_one {
                    return wrong(argument);
                }
            }
            "required" => {
                let is_missing = |name: &&Value| value.get(name.as_str().expect("a name")).is_none();
                if let Some(name) = list(argument).iter().find(is_missing) {
                    return Err(format!("{at}: {name} is missing"));
                }
            }
            "properties" => {
                for (name, inner) in value.as_object().into_iter().flatten() {
                    let inner_schema =
                        argument.get(name).ok_or_else(|| format!("{at}: `{name}` is not listed"))?;
                    validate(inner_schema, inner, &format!("{at}/{name}"))?;
                }
            }
            "additionalProperties" => {
                let mut inner = value.as_object().into_iter().flatten();
                inner.try_for_each(|(name, inner)| validate(argument, inner, &format!("{at}/{name}")))?;
            }
            "items" => {
                let mut inner = value.as_array().into_iter().flatten().enumerate();
                inner.try_for_each(|(index, inner)| validate(argument, inner, &format!("{at}/{index}")))?;
            }
            "prefixItems" => {
                let (schemas, inner) = (list(argument), value.as_array().map_or(&[][..], |list| list));
                if schemas.len() != inner.len() {
                    return Err(format!("{at}: {} items, not {}", inner.len(), schemas.len()));
                }
                let mut pairs = schemas.iter().zip(inner);
                pairs.try_for_each(|(schema, inner)| validate(schema, inner, at))?;
            }
            "oneOf" => {
                let fits = |schema: &&Value| validate(schema, value, at).is_ok();
                match list(argument).iter().filter(fits).count() {
                    1 => {}
                    0 => return Err(format!("{at}: none fits: {}", reasons(argument, value, at))),
                    count => return Err(format!("{at}: {count} schemas fit")),
                }
            }
            "const" | "enum" => {}
            other => panic!("the check of `{other}` is missing"),
        }
    }
    Ok(())
}

fn list(argument: &Value) -> &[Value] {
    argument.as_array().expect("a list")
}

/// Returns the reasons of the alternatives that are meant for this value: their constants agree.
fn reasons(alternatives: &Value, value: &Value, at: &str) -> String {
    let is_meant = |schema: &&Value| {
        let properties = schema["properties"].as_object().into_iter().flatten();
        properties
            .filter_map(|(name, inner)| Some((name, inner.get("const")?)))
            .all(|(name, meant)| value[name] == *meant)
    };
    let meant = list(alternatives).iter().filter(is_meant);
    meant.filter_map(|schema| validate(schema, value, at).err()).collect::<Vec<_>>().join("; ")
}

fn has_type(name: &Value, value: &Value) -> bool {
    match name.as_str().expect("the name of a type") {
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "null" => value.is_null(),
        other => panic!("there is no type `{other}`"),
    }
}
