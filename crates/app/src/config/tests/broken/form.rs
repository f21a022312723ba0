//! Faults of form, which the JSON Schema refuses too.

use super::broken_files;

broken_files! {
    STRUCTURAL:

    unknown_key_at_the_top = "pubilc: { listen: 127.0.0.1:1 }\n"
    says r#"
        drawbridge.yaml:1:1: pubilc: unknown key
          hint: did you mean `public`?
    "#;

    unknown_key_within = "limits:\n  max_sesions: 3\n"
    says r#"
        drawbridge.yaml:2:3: limits.max_sesions: unknown key
          hint: did you mean `max_sessions`?
    "#;

    share_beyond_all = "tracing: { otlp: { sample: 1.5 } }\n"
    says r#"
        drawbridge.yaml:1:20: tracing.otlp.sample: not a share
          hint: write a number from 0 to 1, such as `0.1`
    "#;

    unknown_key_that_is_near_nothing = "drain:\n  whatever: 3\n"
    says r#"
        drawbridge.yaml:2:3: drain.whatever: unknown key
          hint: use one of: delay, deadline
    "#;

    unknown_key_that_lacks_its_end = "limits:\n  max_parked: 3\n"
    says r#"
        drawbridge.yaml:2:3: limits.max_parked: unknown key
          hint: did you mean `max_parked_calls`?
    "#;

    a_key_of_another_section_at_the_top = "answer_timeout: 5m\n"
    says r#"
        drawbridge.yaml:1:1: answer_timeout: unknown key
          hint: it belongs under `limits`
    "#;

    a_key_of_backends_under_limits = "limits:\n  session_scope: none\n"
    says r#"
        drawbridge.yaml:2:3: limits.session_scope: unknown key
          hint: it belongs under `backends.NAME`
    "#;

    a_mapping_in_place_of_a_single_value = "backends:\n  t:\n    url: http://a/mcp\n    cache: { ttl: 5s }\n"
    says r#"
        drawbridge.yaml:4:12: backends.t.cache: not the right kind of value
          hint: write a single value
    "#;

    unknown_key_of_a_backend = "backends:\n  tickets:\n    url: http://a/mcp\n    timeuot: 2s\n"
    says r#"
        drawbridge.yaml:4:5: backends.tickets.timeuot: unknown key
          hint: did you mean `timeout`?
    "#;

    unknown_key_of_a_secret = "backends:\n  t:\n    url: http://a/mcp\n    headers:\n      x-key: { evn: TOKEN }\n"
    says r#"
        drawbridge.yaml:5:16: backends.t.headers.x-key.evn: unknown key
          hint: did you mean `env`?
    "#;

    two_places_for_a_secret = "seal:\n  keys:\n    - id: a\n      key: { env: A, file: /b }\n"
    says r#"
        drawbridge.yaml:4:12: seal.keys[0].key: not a usable value
          hint: write exactly one of the keys `env` and `file`
    "#;

    number_as_a_secret = "backends:\n  t:\n    command: npx\n    env:\n      PORT: 8080\n"
    says r#"
        drawbridge.yaml:5:13: backends.t.env.PORT: not a usable value
          hint: write text in quotes, `{ env: NAME }` or `{ file: PATH }`
    "#;

    text_in_place_of_headers = "backends:\n  t:\n    url: http://a/mcp\n    headers: Bearer hunter2\n"
    says r#"
        drawbridge.yaml:4:14: backends.t.headers: not the right kind of value
          hint: write a mapping
    "#;

    unknown_word = "backends:\n  t:\n    url: http://a/mcp\n    transport: htpp\n"
    says r#"
        drawbridge.yaml:4:16: backends.t.transport: unknown value `htpp`
          hint: use one of: auto, streamable-http, sse
    "#;

    unknown_mode = "auth:\n  mode: tokns\n"
    says r#"
        drawbridge.yaml:2:9: auth.mode: unknown value `tokns`
          hint: did you mean `tokens`?
    "#;

    no_address = "public:\n  listen: localhost\n"
    says r#"
        drawbridge.yaml:2:11: public.listen: not a usable value
          hint: write an address and port, such as `127.0.0.1:8080` or `[::1]:8080`
    "#;

    size_with_an_unknown_unit = "limits:\n  max_body_bytes: 4 megs\n"
    says r#"
        drawbridge.yaml:2:3: limits.max_body_bytes: not a usable value
          hint: write a size above 0, in bytes or with a unit such as `64KiB` or `16MiB`
    "#;

    size_of_zero = "limits:\n  max_body_bytes: 0\n"
    says r#"
        drawbridge.yaml:2:3: limits.max_body_bytes: not a usable value
          hint: write a size above 0, in bytes or with a unit such as `64KiB` or `16MiB`
    "#;

    negative_size = "limits:\n  max_body_bytes: -5\n"
    says r#"
        drawbridge.yaml:2:3: limits.max_body_bytes: not a usable value
          hint: write a size above 0, in bytes or with a unit such as `64KiB` or `16MiB`
    "#;

    count_of_zero = "limits:\n  max_sessions: 0\n"
    says r#"
        drawbridge.yaml:2:3: limits.max_sessions: not a usable value
          hint: write a whole number above 0
    "#;

    duration_without_a_unit = "drain:\n  deadline: 30\n"
    says r#"
        drawbridge.yaml:2:3: drain.deadline: can't be a number
          hint: write a duration with a unit such as `500ms`, `30s`, `10m` or `1h`, at most `365d`
    "#;

    duration_that_is_none = "drain:\n  deadline: soon\n"
    says r#"
        drawbridge.yaml:2:3: drain.deadline: not a usable value
          hint: write a duration with a unit such as `500ms`, `30s`, `10m` or `1h`, at most `365d`
    "#;

    text_in_place_of_a_list = "endpoints:\n  a:\n    backends: tickets\n"
    says r#"
        drawbridge.yaml:3:15: endpoints.a.backends: not the right kind of value
          hint: write a list
    "#;

    endpoint_without_backends = "endpoints:\n  a: {}\n"
    says r#"
        drawbridge.yaml:2:6: endpoints.a.backends: this key is required
          hint: add `backends`
    "#;

    seal_key_without_an_id = "seal:\n  keys:\n    - key: { env: TOKEN }\n"
    says r#"
        drawbridge.yaml:3:7: seal.keys[0].id: this key is required
          hint: add `id`
    "#;

    list_in_place_of_a_mapping = "backends:\n  - url: http://a/mcp\n"
    says r#"
        drawbridge.yaml:2:3: backends: not the right kind of value
          hint: write a mapping
    "#;

    text_in_place_of_the_file = "hello\n"
    says r#"
        drawbridge.yaml:1:1: not the right kind of value
          hint: write a mapping
    "#;

    yes_as_a_truth_value = "auth:\n  i_know_this_is_open: maybe\n"
    says r#"
        drawbridge.yaml:2:24: auth.i_know_this_is_open: not a truth value
          hint: write true or false
    "#;

    unknown_word_for_the_proxy = "outbound:\n  proxy: off\n"
    says r#"
        drawbridge.yaml:2:10: outbound.proxy: not a usable value
          hint: write `none`, `environment` or `{ url: URL, no_proxy: [HOST] }`
    "#;

    url_and_command = "backends:\n  t: { url: http://a/mcp, command: npx }\n"
    says r#"
        drawbridge.yaml:2:3: backends.t: a backend has `url` or `command`, not both
          hint: keep `url` for a server reached over HTTP, `command` for one to start
    "#;

    neither_url_nor_command = "backends:\n  t: { timeout: 3s }\n"
    says r#"
        drawbridge.yaml:2:3: backends.t: a backend needs `url` or `command`
          hint: add `url: https://...` for a server reached over HTTP, or `command: ...` for one to start
    "#;

    key_of_http_on_stdio = "backends:\n  t:\n    command: npx\n    headers: { a: b }\n"
    says r#"
        drawbridge.yaml:4:5: backends.t.headers: this key goes with `url`, but this backend has `command`
          hint: remove the key
    "#;

    caller_of_a_program = "backends:\n  t:\n    command: sh\n    identity_jwt: true\n    caller_headers: { X-A: \"{principal.sub}\" }\n"
    says r#"
        drawbridge.yaml:4:5: backends.t.identity_jwt: this key goes with `url`, but this backend has `command`
          hint: remove the key
        drawbridge.yaml:5:5: backends.t.caller_headers: this key goes with `url`, but this backend has `command`
          hint: remove the key
    "#;

    key_of_stdio_on_http = "backends:\n  t:\n    url: http://a/mcp\n    args: [a]\n    cwd: /tmp\n"
    says r#"
        drawbridge.yaml:4:5: backends.t.args: this key goes with `command`, but this backend has `url`
          hint: remove the key
        drawbridge.yaml:5:5: backends.t.cwd: this key goes with `command`, but this backend has `url`
          hint: remove the key
    "#;

    name_with_capitals = "backends:\n  Tickets: { url: http://a/mcp }\n"
    says r#"
        drawbridge.yaml:2:3: backends.Tickets: not a usable name
          hint: use 1 to 32 lower-case letters, digits or `-`
    "#;

    reserved_name = "backends:\n  sse: { url: http://a/mcp }\n"
    says r#"
        drawbridge.yaml:2:3: backends.sse: the name `sse` is reserved for paths of the gateway
          hint: choose another name
    "#;

    empty_list_of_backends = "endpoints:\n  a: { backends: [] }\n"
    says r#"
        drawbridge.yaml:2:8: endpoints.a.backends: the list is empty
          hint: name at least one backend
    "#;

    empty_list_in_a_policy = "auth: { mode: tokens }\npolicies: [{ allow: { backends: [] } }]\n"
    says r#"
        drawbridge.yaml:2:23: policies[0].allow.backends: the list is empty
          hint: name backends, or `"*"` for all
    "#;

    name_of_an_instance = "instance_id: a b\n"
    says r#"
        drawbridge.yaml:1:1: instance_id: not a usable name
          hint: use 1 to 64 letters, digits, `.`, `_` or `-`
    "#;

    several_faults_of_form = "pubilc: {}\nlog:\n  format: xml\nlimits: { max_sessions: 0, max_streams: many }\nbackends:\n  a: { url: \"http://a/mcp\", timeout: 3 }\n  B:\n    timeuot: 3s\n    url: http://b/mcp\n    headers: { A.B: 5, C.D: [], E: {} }\n  c: []\nseal:\n  keys: [{ key: x }]\nendpoints:\n  e: {}\n  f: { backends: [a, B, c, d] }\n"
    says r#"
        drawbridge.yaml:1:1: pubilc: unknown key
          hint: did you mean `public`?
        drawbridge.yaml:3:11: log.format: unknown value `xml`
          hint: use one of: text, json
        drawbridge.yaml:4:11: limits.max_sessions: not a usable value
          hint: write a whole number above 0
        drawbridge.yaml:4:41: limits.max_streams: not a usable value
          hint: write a whole number
        drawbridge.yaml:6:29: backends.a.timeout: can't be a number
          hint: write a duration with a unit such as `500ms`, `30s`, `10m` or `1h`, at most `365d`
        drawbridge.yaml:7:3: backends.B: not a usable name
          hint: use 1 to 32 lower-case letters, digits or `-`
        drawbridge.yaml:8:5: backends.B.timeuot: unknown key
          hint: did you mean `timeout`?
        drawbridge.yaml:10:21: backends.B.headers.A.B: not a usable value
          hint: write text in quotes, `{ env: NAME }` or `{ file: PATH }`
        drawbridge.yaml:10:24: backends.B.headers.C.D: can't be a list
          hint: write text, `{ env: NAME }` or `{ file: PATH }`
        drawbridge.yaml:10:36: backends.B.headers.E: not a usable value
          hint: write exactly one of the keys `env` and `file`
        drawbridge.yaml:11:6: backends.c: not the right kind of value
          hint: write a mapping
        drawbridge.yaml:13:10: seal.keys[0].id: this key is required
          hint: add `id`
        drawbridge.yaml:15:3: endpoints.e.backends: this key is required
          hint: add `backends`
        drawbridge.yaml:16:28: endpoints.f.backends[3]: there is no backend `d`
          hint: use one of: B, a, c
    "#;
}
