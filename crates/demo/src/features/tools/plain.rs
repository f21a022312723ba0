//! Tools that need nothing from the client.

use std::time::Duration;

use drawbridge_wire::ProtocolVersion;
use serde_json::{Value, json};

use crate::announce::Change;
use crate::call::{Call, Caller, Halt, Outcome};
use crate::features::resources;
use crate::level::Level;

pub(super) const MAX_SLEEP_MS: u64 = 600_000;
pub(super) const MAX_BIG: u64 = 64 << 20;

/// A result of one text.
pub(super) fn text(text: impl Into<String>) -> Value {
    json!({ "content": [{ "type": "text", "text": text.into() }] })
}

/// A result for programs, with the same as text for models.
fn structured(value: Value) -> Value {
    let mut result = text(value.to_string());
    result["structuredContent"] = value;
    result
}

fn string<'a>(arguments: &'a Value, key: &str) -> Result<&'a str, Halt> {
    arguments[key].as_str().ok_or_else(|| Halt::Failed(format!("the argument {key} is a string")))
}

fn whole(arguments: &Value, key: &str, max: u64) -> Result<u64, Halt> {
    let value = arguments[key].as_u64().filter(|value| *value <= max);
    value.ok_or_else(|| Halt::Failed(format!("the argument {key} is an integer from 0 to {max}")))
}

pub(super) fn echo(arguments: &Value) -> Outcome {
    Ok(text(string(arguments, "message")?))
}

pub(super) fn add(arguments: &Value) -> Outcome {
    let (a, b) = (&arguments["a"], &arguments["b"]);
    if let (Some(a), Some(b)) = (a.as_i64(), b.as_i64())
        && let Some(sum) = a.checked_add(b)
    {
        return Ok(structured(json!({ "sum": sum })));
    }
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => Ok(structured(json!({ "sum": a + b }))),
        _ => Err(Halt::Failed("the arguments a and b are numbers".to_owned())),
    }
}

pub(super) async fn sleep(call: &Call, arguments: &Value) -> Outcome {
    let ms = whole(arguments, "ms", MAX_SLEEP_MS)?;
    let steps = (ms / 100).clamp(1, 10);
    call.progress(0, steps, "lying down").await;
    for step in 1..=steps {
        tokio::time::sleep(Duration::from_millis(ms * step / steps - ms * (step - 1) / steps)).await;
        call.progress(step, steps, &format!("step {step} of {steps}")).await;
    }
    Ok(text(format!("slept {ms} ms")))
}

pub(super) async fn log(call: &Call, arguments: &Value) -> Outcome {
    let message = string(arguments, "message")?;
    let level = match &arguments["level"] {
        Value::Null => Level::INFO,
        level => Level::parse(level).map_err(|error| Halt::Failed(error.message))?,
    };
    let sent = call.log(level, message.into()).await;
    Ok(text(if sent { "logged" } else { "the client does not want messages of this level" }))
}

pub(super) fn image(call: &Call) -> Outcome {
    let mut content = vec![json!({ "type": "image", "mimeType": "image/png", "data": resources::PNG })];
    if call.version() >= ProtocolVersion::V2025_06_18 {
        content.push(json!({ "type": "resource_link", "uri": "demo://pixel.png", "name": "pixel",
                             "mimeType": "image/png" }));
    }
    Ok(json!({ "content": content }))
}

pub(super) fn big(arguments: &Value) -> Outcome {
    let bytes = usize::try_from(whole(arguments, "bytes", MAX_BIG)?).unwrap_or_default();
    Ok(text("x".repeat(bytes)))
}

pub(super) fn fail(arguments: &Value) -> Outcome {
    Err(Halt::Failed(arguments["message"].as_str().unwrap_or("this tool always fails").to_owned()))
}

pub(super) fn region(arguments: &Value) -> Outcome {
    Ok(text(format!("region {}", arguments["region"].as_str().unwrap_or("unknown"))))
}

pub(super) fn whoami(call: &Call) -> Outcome {
    let mut about = json!({
        "pid": std::process::id(),
        "era": if call.is_modern() { "modern" } else { "legacy" },
        "protocolVersion": call.version().as_str(),
    });
    match &call.caller {
        Caller::Legacy(session) => {
            about["client"] = session.client_info.clone();
            about["capabilities"] = session.capabilities.clone();
            about["session"] = session.id.clone().into();
        }
        Caller::Modern(envelope) => {
            about["client"] = envelope.client_info.clone();
            about["capabilities"] = envelope.capabilities.clone();
        }
    }
    Ok(structured(about))
}

pub(super) fn touch(call: &Call) -> Outcome {
    let counter = call.demo.count_up();
    let updated = Change::Updated(resources::COUNTER.to_owned());
    for change in [Change::Tools, Change::Prompts, Change::Resources, updated] {
        call.demo.announce(&change);
    }
    Ok(structured(json!({ "counter": counter })))
}
