//! Variables in the strings of an `mcp.json`: `${NAME}`, `${env:NAME}`, `${NAME:-default}`.

use std::collections::HashMap;

/// Why a string can't be expanded.
pub(super) struct Fault {
    pub(super) message: String,
    pub(super) hint: String,
}

/// The string with its variables replaced. What is no variable stays as it is.
pub(super) fn expand(text: &str, env: &HashMap<String, String>) -> Result<String, Fault> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let (before, from) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = from.find('}') else {
            rest = from;
            break;
        };
        out.push_str(&variable(&from[2..end], env)?);
        rest = &from[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

fn variable(written: &str, env: &HashMap<String, String>) -> Result<String, Fault> {
    if let Some(input) = written.strip_prefix("input:") {
        return Err(Fault {
            message: format!("`${{input:{input}}}` asks a person, and a gateway has none to ask"),
            hint: "put the value into an environment variable and write `${env:NAME}`".to_owned(),
        });
    }
    let expression = written.strip_prefix("env:").unwrap_or(written);
    let (name, default) = match expression.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (expression, None),
    };
    match (env.get(name), default) {
        (Some(value), None) => Ok(value.clone()),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value.clone()),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(Fault {
            message: format!("environment variable {name} is not set"),
            hint: format!(
                "set {name} where the gateway is started, or replace `${{{written}}}` by its value"
            ),
        }),
    }
}
