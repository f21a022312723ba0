//! Which crate may use which: the picture in `docs/` as a test.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

fn metadata() -> Metadata {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    MetadataCommand::new().manifest_path(manifest).no_deps().exec().unwrap()
}

/// Dependencies by crate: those of the product, and those of its tests and builds as well.
fn dependencies(with_dev: bool) -> BTreeMap<String, BTreeSet<String>> {
    let crates = metadata().packages.into_iter().map(|package| {
        let used = package.dependencies.into_iter();
        let used = used.filter(|used| with_dev || used.kind == DependencyKind::Normal);
        (package.name.to_string(), used.map(|used| used.name).collect())
    });
    crates.collect()
}

/// Not part of the product.
const DEVELOPMENT: [&str; 3] = ["drawbridge-testkit", "drawbridge-tests", "drawbridge-benches"];

/// What each crate of the product may use of the others.
const ALLOWED: [(&str, &[&str]); 12] = [
    ("drawbridge-wire", &[]),
    ("drawbridge-core", &["wire"]),
    ("drawbridge-demo", &["wire"]),
    ("drawbridge-auth", &["core"]),
    ("drawbridge-sql", &["auth"]),
    ("drawbridge-upstream", &["wire", "core"]),
    ("drawbridge-credentials", &["core", "auth"]),
    ("drawbridge-oauth", &["core", "auth", "credentials"]),
    ("drawbridge-front", &["wire", "core", "auth"]),
    ("drawbridge-admin", &["wire", "core", "auth"]),
    ("drawbridge-redis", &["core"]),
    (
        "drawbridge-app",
        &[
            "wire",
            "core",
            "upstream",
            "front",
            "admin",
            "demo",
            "redis",
            "auth",
            "credentials",
            "oauth",
            "sql",
        ],
    ),
];

#[test]
fn crates_use_only_those_below_them() {
    let known: BTreeMap<&str, BTreeSet<String>> = ALLOWED
        .iter()
        .map(|(name, allowed)| (*name, allowed.iter().map(|to| format!("drawbridge-{to}")).collect()))
        .collect();
    for (name, used) in dependencies(false) {
        if DEVELOPMENT.contains(&name.as_str()) {
            continue;
        }
        let allowed =
            known.get(name.as_str()).unwrap_or_else(|| panic!("{name} has no place in the picture"));
        for own in used.iter().filter(|used| used.starts_with("drawbridge")) {
            assert!(allowed.contains(own), "{name} must not use {own}");
        }
    }
}

#[test]
fn test_crates_stay_out_of_the_product() {
    let packages = metadata().packages;
    for package in packages.iter().filter(|package| !DEVELOPMENT.contains(&package.name.as_str())) {
        let normal = package.dependencies.iter().filter(|used| used.kind != DependencyKind::Development);
        for used in normal {
            assert!(!DEVELOPMENT.contains(&used.name.as_str()), "{} uses {}", package.name, used.name);
        }
    }
    let published =
        packages.iter().filter(|package| package.publish.as_ref().is_none_or(|to| !to.is_empty()));
    assert_eq!(published.count(), 0);
}

/// Libraries that belong to some crates of the product only, and why.
const CONFINED: [(&str, &[&str], &str); 12] = [
    ("axum", &["front", "admin", "demo", "oauth", "app"], "faces are the only servers"),
    ("hyper", &["front", "upstream", "app"], "HTTP is for faces and backends"),
    ("hyper-util", &["front", "upstream", "app"], "HTTP is for faces and backends"),
    ("hyper-rustls", &["upstream"], "only backends are connected to"),
    ("rustix", &["upstream", "app"], "backends are processes, and the program keeps its own memory private"),
    ("redis", &["redis"], "shared state has ports"),
    ("sqlx", &["sql"], "records have a port"),
    ("jsonwebtoken", &["auth"], "who may is found out in one place"),
    ("prometheus", &["admin"], "what is counted is named in one place"),
    ("opentelemetry-otlp", &["app"], "what is traced is named in one place"),
    ("clap", &["app"], "there is one command line"),
    ("chacha20poly1305", &["core", "demo"], "one module seals"),
];

#[test]
fn libraries_stay_in_the_crates_they_are_for() {
    for (name, used) in dependencies(false) {
        if DEVELOPMENT.contains(&name.as_str()) {
            continue;
        }
        let short = name.trim_start_matches("drawbridge-");
        for (library, homes, why) in CONFINED {
            let here = used.contains(library);
            assert!(!here || homes.contains(&short), "{name} must not use {library}: {why}");
        }
    }
}

#[test]
fn wire_does_no_input_or_output() {
    let used = &dependencies(true)["drawbridge-wire"];
    for library in ["tokio", "tokio-util", "hyper", "hyper-util", "axum", "http", "futures-util", "tracing"] {
        assert!(!used.contains(library), "wire uses {library}");
    }
}

#[test]
fn core_knows_no_server_and_no_connection() {
    let used = &dependencies(false)["drawbridge-core"];
    for library in ["axum", "hyper", "hyper-util", "http", "rustls", "clap", "serde-saphyr"] {
        assert!(!used.contains(library), "core uses {library}");
    }
}

#[test]
fn all_crates_share_the_workspaces_lints() {
    for package in metadata().packages {
        let manifest = std::fs::read_to_string(&package.manifest_path).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true"), "{}", package.name);
    }
}
