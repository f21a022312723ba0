//! Tools that ask the client something before they have a result.

use drawbridge_wire::method;
use serde_json::{Value, json};

use super::plain::text;
use crate::call::{Call, Halt, Outcome};

pub(super) async fn elicit(call: &Call, arguments: &Value) -> Outcome {
    let message = arguments["message"].as_str().unwrap_or("What is your name?");
    let params = json!({
        "message": message,
        "requestedSchema": {
            "type": "object",
            "properties": { "name": { "type": "string", "title": "Name", "minLength": 1 } },
            "required": ["name"],
        },
    });
    let answer = call.ask("name", method::ELICITATION_CREATE, params).await?;
    match answer["action"].as_str() {
        Some("accept") => match answer["content"]["name"].as_str() {
            Some(name) => Ok(text(format!("Hello, {name}!"))),
            None => Err(Halt::Failed("the form came back without a name".to_owned())),
        },
        Some("decline") => Ok(text("The user declined.")),
        _ => Ok(text("The user cancelled.")),
    }
}

pub(super) async fn sample(call: &Call, arguments: &Value) -> Outcome {
    let prompt = arguments["prompt"].as_str().unwrap_or("Say hello in one word.");
    let params = json!({
        "messages": [{ "role": "user", "content": { "type": "text", "text": prompt } }],
        "maxTokens": 100,
    });
    let answer = call.ask("sample", method::SAMPLING_CREATE_MESSAGE, params).await?;
    let block = match &answer["content"] {
        Value::Array(blocks) => blocks.first().cloned().unwrap_or_default(),
        block => block.clone(),
    };
    let model = answer["model"].as_str().unwrap_or("the model");
    Ok(text(format!("{model} says: {}", block["text"].as_str().unwrap_or("nothing"))))
}

pub(super) async fn roots(call: &Call) -> Outcome {
    let answer = call.ask("roots", method::ROOTS_LIST, json!({})).await?;
    let roots = answer["roots"].as_array().map(Vec::as_slice).unwrap_or_default();
    let uris: Vec<_> = roots.iter().filter_map(|root| root["uri"].as_str()).collect();
    Ok(text(if uris.is_empty() { "no roots".to_owned() } else { uris.join("\n") }))
}
