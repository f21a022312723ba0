//! The description of the API, but for what handlers say of themselves.

use axum::http::StatusCode;
use utoipa::Modify;
use utoipa::openapi::path::PathItem;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Components, Content, OpenApi, Ref, RefOr, Response};

use super::problem::Problem;

const PROBLEM: &str = "application/problem+json";

/// What is true of all of it.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Drawbridge admin API",
        description = "Tokens, users, grants, OAuth clients, the audit trail, instances, backends and sessions of a Drawbridge gateway. Whatever fails is \
                       answered with a problem (RFC 9457).",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    components(schemas(Problem)),
    security(("admin_token" = [])),
    modifiers(&Security),
)]
pub(crate) struct Document;

struct Security;

impl Modify for Security {
    fn modify(&self, document: &mut OpenApi) {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer);
        let bearer = bearer.description(Some(
            "An admin token. Reading takes the scope admin:read, changing admin:tokens; admin:* has both.",
        ));
        let components = document.components.get_or_insert_with(Components::new);
        components.add_security_scheme("admin_token", SecurityScheme::Http(bearer.build()));
    }
}

/// The description with what is the same of all answers: whatever fails is a problem.
pub(crate) fn complete(mut document: OpenApi) -> OpenApi {
    for item in document.paths.paths.values_mut() {
        let PathItem { get, post, delete, .. } = item;
        for operation in [get, post, delete].into_iter().flatten() {
            let responses = &mut operation.responses.responses;
            responses.insert("default".to_owned(), RefOr::T(Response::new("A problem")));
            for (status, response) in responses {
                let RefOr::T(response) = response else { continue };
                let code = status.parse().ok().and_then(|code| StatusCode::from_u16(code).ok());
                if response.description.is_empty() {
                    let reason = code.and_then(|code| code.canonical_reason());
                    response.description = reason.unwrap_or_default().to_owned();
                }
                if code.is_none_or(|code| !code.is_success()) {
                    let problem = Content::new(Some(Ref::from_schema_name("Problem")));
                    response.content.clear();
                    response.content.insert(PROBLEM.to_owned(), problem.into());
                }
            }
        }
    }
    document
}
