//! Who may: the tests of the authorization digest, by their numbers.

mod accounts;
mod admin_grants;
mod admin_tokens;
mod attacks;
mod audit;
mod authorize;
mod cimd;
mod configuration;
mod discovery;
mod exchange;
mod external;
mod handles;
mod introspection;
mod leaks;
mod noted;
mod operators;
mod outage;
mod overview;
mod own_credentials;
mod policies;
mod registration;
mod sessions;
mod token_endpoint;
mod tokens;
mod user_secret;
mod world;
