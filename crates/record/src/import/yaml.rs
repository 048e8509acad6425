//! YAML to JSON values: the part of YAML that records are written in.
//!
//! Aliases and tags are refused: no record needs them, and an alias of aliases is how a small file becomes a
//! large one.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Number, Value};

/// Deepest nesting; a record has two.
const DEPTH_MAX: usize = 16;

/// A list or map that is being read.
enum Open {
    List(Vec<Value>),
    Map { map: Map<String, Value>, key: Option<String> },
}

/// The documents of a text.
///
/// # Errors
/// In words, with the line.
pub(super) fn documents(text: &str) -> Result<Vec<Value>, String> {
    let mut documents = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| error.to_string().replace('\n', " "))?;
        let line = span.start.line();
        let value = match event {
            Event::Alias(_) => return Err(format!("line {line}: aliases are not read")),
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => {
                return Err(format!("line {line}: tags are not read"));
            }
            Event::SequenceStart(..) | Event::MappingStart(..) if open.len() >= DEPTH_MAX => {
                return Err(format!("line {line}: nested more than {DEPTH_MAX} deep"));
            }
            Event::SequenceStart(..) => {
                open.push(Open::List(Vec::new()));
                continue;
            }
            Event::MappingStart(..) => {
                open.push(Open::Map { map: Map::new(), key: None });
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(Open::List(list)) => Value::Array(list),
                Some(Open::Map { map, .. }) => Value::Object(map),
                None => return Err(format!("line {line}: ends what was not begun")),
            },
            Event::Scalar(text, style, _, None) => scalar(&text, style),
            _ => continue,
        };
        match open.last_mut() {
            None => documents.push(value),
            Some(Open::List(list)) => list.push(value),
            Some(Open::Map { map, key }) => match key.take() {
                Some(key) => {
                    map.insert(key, value);
                }
                None => {
                    let name = match value {
                        Value::String(name) => name,
                        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
                        _ => return Err(format!("line {line}: a name is a list or map")),
                    };
                    if map.contains_key(&name) {
                        return Err(format!("line {line}: {name:?} is there twice"));
                    }
                    *key = Some(name);
                }
            },
        }
    }
    Ok(documents)
}

/// A plain scalar by YAML's core schema; a quoted one is text. NaN and infinity, which JSON has not, stay text.
fn scalar(text: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return text.into();
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_number = digits.starts_with(|letter: char| letter.is_ascii_digit() || letter == '.')
        && digits.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    if is_number {
        if let Ok(whole) = text.parse::<u64>() {
            return whole.into();
        }
        if let Ok(whole) = text.parse::<i64>() {
            return whole.into();
        }
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        if let Some(number) = number.and_then(Number::from_f64) {
            return Value::Number(number);
        }
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_yaml_of_records_is_read() {
        let text = "a: 1\nb: 2.5\nc: yes it is\nd:\ne: [x, \"2\"]\nf:\n  - y\n  - z\ng: true\nh: |\n  two\n  lines\n";
        let expected = json!({
            "a": 1, "b": 2.5, "c": "yes it is", "d": null, "e": ["x", "2"], "f": ["y", "z"],
            "g": true, "h": "two\nlines\n",
        });
        assert_eq!(documents(text).unwrap(), [expected]);
        assert_eq!(documents("a: 1\n---\na: 2\n").unwrap(), [json!({"a": 1}), json!({"a": 2})]);
        assert_eq!(documents("seed: 18446744073709551615").unwrap(), [json!({"seed": u64::MAX})]);
        assert_eq!(documents("").unwrap(), [] as [Value; 0]);
    }

    #[test]
    fn what_is_no_record_is_refused_in_one_line() {
        let deep = "[".repeat(100_000);
        let nested = format!("{}1{}", "[".repeat(40), "]".repeat(40));
        for text in [
            "a: [",
            "a: 1\n b: 2",
            "a: 1\na: 2",
            "a: &x 1\nb: *x",
            "a: !!python/object:os.system x",
            "? [a]\n: 1",
            &deep,
            &nested,
        ] {
            let error = documents(text).unwrap_err();
            assert!(!error.contains('\n') && error.len() < 300, "{error}");
        }
    }
}
