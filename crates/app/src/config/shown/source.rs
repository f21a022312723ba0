//! Where the values of a configuration are from.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::config::Overrides;
use crate::config::model::Config;
use crate::config::position::{Positions, is_within};

/// Where a value is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// It is written in the configuration file.
    File,
    /// The list of servers has it.
    List,
    /// A flag of the command line.
    Flag,
    /// A variable of the environment.
    Environment,
    /// Nobody has said.
    Default,
}

/// Which keys are written, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    file: BTreeSet<String>,
    over: BTreeMap<&'static str, Source>,
    /// Backends of the list of servers.
    list: BTreeSet<String>,
}

/// What a list of servers says of a backend.
const OF_LIST: [&str; 7] = ["url", "transport", "headers", "command", "args", "env", "cwd"];
/// What variables of the environment say that others have made known, if the file does not.
const OF_ENVIRONMENT: [&str; 3] = ["outbound.proxy", "tracing.otlp.endpoint", "tracing.otlp.service_name"];

/// A written key as it is shown: names of headers have no case.
fn as_shown(key: &str) -> String {
    let parts = |of: &'static str| Some((key.split_once(of)?, of));
    match parts(".headers.").or_else(|| parts(".caller_headers.")) {
        Some(((before, name), of)) => format!("{before}{of}{}", name.to_ascii_lowercase()),
        None => key.to_owned(),
    }
}

impl Written {
    pub(in crate::config) fn new(
        positions: &Positions,
        over: BTreeMap<&'static str, Source>,
        list: impl IntoIterator<Item = String>,
    ) -> Self {
        Self { file: positions.all().map(as_shown).collect(), over, list: list.into_iter().collect() }
    }

    /// Where the value of a key is from, which a configuration without anything in it does not have.
    fn source(&self, key: &str, is_default: bool) -> Source {
        if let Some(source) = self.over.get(key) {
            return *source;
        }
        // A secret that the file does not have, but names the variable which does.
        if self.file.contains(&format!("{key}.env")) {
            return Source::Environment;
        }
        if self.file.contains(key) {
            return Source::File;
        }
        let of_backend = key.strip_prefix("backends.").and_then(|rest| rest.split_once('.'));
        if let Some((name, of)) = of_backend
            && self.list.contains(name)
        {
            let has = OF_LIST.iter().any(|listed| is_within(of, listed)) && !is_default;
            return if has { Source::List } else { Source::Default };
        }
        let is_of_environment = OF_ENVIRONMENT.iter().any(|known| is_within(key, known)) && !is_default;
        if is_of_environment { Source::Environment } else { Source::Default }
    }

    /// All values of `config` with where they are from: values of keys that `is_kept` are as `start` has them.
    pub fn sources(
        &self,
        config: &Config,
        start: &Self,
        is_kept: impl Fn(&str) -> bool,
    ) -> Vec<(String, serde_json::Value, Source)> {
        let defaults: HashMap<String, serde_json::Value> =
            super::shown(&Config::default()).into_iter().collect();
        let of = |(key, value): (String, serde_json::Value)| {
            let written = if is_kept(&key) { start } else { self };
            let by_name = key.ends_with(".transport") && value == "auto"
                || key.ends_with(".service_name") && value == "drawbridge";
            let is_default = defaults.get(&key) == Some(&value) || value.is_null() || by_name;
            let source = written.source(&key, is_default);
            (key, value, source)
        };
        super::shown(config).into_iter().map(of).collect()
    }
}

impl Overrides {
    /// Which keys these are about, and whether a variable of `env` or a flag has their values.
    pub(in crate::config) fn sources(&self, env: &HashMap<String, String>) -> BTreeMap<&'static str, Source> {
        let of = |variable: &str, is_same: &dyn Fn(&str) -> bool| match env.get(variable) {
            Some(text) if is_same(text) => Source::Environment,
            _ => Source::Flag,
        };
        let same_address = |wanted: std::net::SocketAddr| {
            move |text: &str| text.parse::<std::net::SocketAddr>().is_ok_and(|address| address == wanted)
        };
        let same_text = |wanted: &str| {
            let wanted = wanted.to_owned();
            move |text: &str| text == wanted
        };
        let mode = self.auth.and_then(|mode| serde_json::to_value(mode).ok());
        let mode = mode.as_ref().and_then(|mode| mode.as_str()).map(str::to_owned);
        let all = [
            ("public.listen", self.listen.map(|at| of("DRAWBRIDGE_LISTEN", &same_address(at)))),
            ("admin.listen", self.admin_listen.map(|at| of("DRAWBRIDGE_ADMIN_LISTEN", &same_address(at)))),
            ("public.url", self.public_url.as_ref().map(|u| of("DRAWBRIDGE_PUBLIC_URL", &same_text(u)))),
            ("redis.url", self.redis.as_ref().map(|u| of("DRAWBRIDGE_REDIS", &same_text(u.expose())))),
            (
                "database.url",
                self.database.as_ref().map(|u| of("DRAWBRIDGE_DATABASE", &same_text(u.expose()))),
            ),
            ("auth.mode", mode.map(|mode| of("DRAWBRIDGE_AUTH", &same_text(&mode)))),
            ("instance_id", self.instance_id.as_ref().map(|id| of("DRAWBRIDGE_INSTANCE_ID", &same_text(id)))),
        ];
        all.into_iter().filter_map(|(key, source)| Some((key, source?))).collect()
    }
}
