//! Faults of meaning, which no schema can see.

use super::broken_files;

broken_files! {
    SEMANTIC:

    redis_without_a_seal_key = "redis:\n  url: redis://localhost\n"
    says r#"
        drawbridge.yaml:2:3: redis.url: instances that share state need the same seal keys, and `seal.keys` has none
          hint: make one with `openssl rand -base64 32`, and give it to all instances as `seal: { keys: [{ id: k1, key: { env: DRAWBRIDGE_SEAL_K1 } }] }`
    "#;

    redis_without_a_url = "seal: { keys: [{ id: a, key: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= }] }\nredis:\n  timeout: 0s\n"
    says r#"
        drawbridge.yaml:2:1: redis: the URL is missing
          hint: add `url: redis://HOST:6379`
        drawbridge.yaml:3:3: redis.timeout: must be longer than 0
          hint: name a duration such as `30s`, or remove the key
    "#;

    redis_at_no_url = "seal: { keys: [{ id: a, key: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= }] }\nredis:\n  url: \"redis://:hunter2/@a\"\n"
    says r#"
        drawbridge.yaml:3:3: redis.url: an `@` stands behind the hosts; write `/`, `?`, `#` and `@` in user and password as %2F, %3F, %23 and %40
          hint: write it as `redis://HOST:6379`, `redis+sentinel://HOST:26379/MASTER` or `redis+cluster://HOST:6379,HOST:6379`; `rediss` in place of `redis` is TLS
    "#;

    redis_with_a_user_and_no_password = "seal: { keys: [{ id: a, key: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= }] }\nredis:\n  url: redis://a\n  user: gate\n"
    says r#"
        drawbridge.yaml:4:3: redis.user: a user without a password
          hint: add `password: { file: PATH }`
    "#;

    redis_whose_password_is_not_there = "seal: { keys: [{ id: a, key: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= }] }\nredis:\n  url: redis://a\n  password: { file: /no/such/file }\n  ca_bundle: /no/such/ca.pem\n"
    says r#"
        drawbridge.yaml:4:3: redis.password: can't read the secret from /no/such/file: No such file or directory (os error 2)
          hint: check the path and who may read it
        drawbridge.yaml:5:3: redis.ca_bundle: /no/such/ca.pem: I/O error: No such file or directory (os error 2)
          hint: name a PEM file with the certificates of authorities
    "#;

    database = "data_dir: /tmp\ndatabase: { url: \"mysql://a/b\" }\n"
    says r#"
        drawbridge.yaml:2:13: database.url: not the URL of a database that can be used
          hint: write `postgres://USER:PASSWORD@HOST/NAME`, or `sqlite:FILE` for one instance alone
    "#;

    collector_at_no_url = "tracing:\n  otlp:\n    endpoint: collector:4318\n    headers: { \"a b\": x }\n"
    says r#"
        drawbridge.yaml:3:5: tracing.otlp.endpoint: not the URL of a collector
          hint: write it as `http://HOST:4318`, or with `protocol: grpc` as `http://HOST:4317`
        drawbridge.yaml:4:16: tracing.otlp.headers.a b: not the name of a header
          hint: use letters, digits and `-`
    "#;

    collector_over_grpc_and_tls = "tracing:\n  otlp: { endpoint: \"https://c:4317\", protocol: grpc }\n"
    says r#"
        drawbridge.yaml:2:11: tracing.otlp.endpoint: gRPC is spoken without TLS
          hint: use `protocol: http`, or a collector nearby
    "#;

    tokens_of_nobody = "auth: { mode: external }\n"
    says r#"
        drawbridge.yaml:1:9: auth.mode: the mode `external` needs an issuer of tokens
          hint: name one: `auth: { external: [{ issuer: https://login.example.com }] }`
    "#;

    tokens_that_anybody_signs = "auth:\n  external: [{ issuer: \"http://login.example.com\", algorithms: [HS256] }]\n"
    says r#"
        drawbridge.yaml:2:16: auth.external[0].issuer: not an https URL, or there twice
          hint: write it exactly as in its tokens, such as `https://login.example.com`, and once
        drawbridge.yaml:2:65: auth.external[0].algorithms[0]: not an algorithm that is accepted
          hint: use one of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA
    "#;

    passwords_in_urls_that_anybody_is_told = "auth:\n  mode: external\n  external: [{ issuer: \"https://u:p@login.example.com\", introspection: { url: \"https://u:p@login.example.com/i\", client_id: c, client_secret: s } }]\nbackends:\n  c:\n    url: http://a/mcp\n    auth: { kind: client_credentials, token_endpoint: \"https://u:p@a/t\", client_id: x, client_secret: y, resource: \"https://u:p@a\" }\n"
    says r#"
        drawbridge.yaml:3:16: auth.external[0].issuer: not an https URL, or there twice
          hint: write it exactly as in its tokens, such as `https://login.example.com`, and once
        drawbridge.yaml:3:74: auth.external[0].introspection.url: not an https URL
          hint: write the issuer's `introspection_endpoint`, as its metadata name it
        drawbridge.yaml:7:39: backends.c.auth.token_endpoint: not an https URL
          hint: secrets are sent there: write an https URL without user and password, such as `https://login.example.com`
        drawbridge.yaml:7:106: backends.c.auth.resource: not a URL
          hint: write the URL that the server knows the backend by, without user, password and fragment, or "" if it knows none
    "#;

    login_without_a_url = "public: { listen: 0.0.0.0:80 }\nauth: { mode: embedded }\n"
    says r#"
        drawbridge.yaml:2:9: auth.mode: this mode needs the URL that clients know
          hint: set `public.url`, such as `https://mcp.example.com`
    "#;

    login_in_clear = "public: { url: \"http://mcp.example.com\" }\nauth: { mode: embedded }\n"
    says r#"
        drawbridge.yaml:1:11: public.url: tokens must not travel in clear, and clients refuse to log in there
          hint: use `https`, and let whatever is in front of the gateway speak it
    "#;

    login_of_any_tenant = "auth:\n  mode: embedded\n  login: { issuer: \"https://login.microsoftonline.com/common/v2.0\", client_id: x }\n"
    says r#"
        drawbridge.yaml:3:12: auth.login.issuer: this provider would let users of any tenant in
          hint: name your own tenant's issuer
    "#;

    redirect_of_many = "auth:\n  registration: { redirect_uris: [\"https://*.example.com/cb\"] }\n"
    says r#"
        drawbridge.yaml:2:35: auth.registration.redirect_uris[0]: not an https URL in its normal form
          hint: write each one in full, such as `https://app.example.com/callback`; there are no wildcards
    "#;

    documents_of_many_hosts = "auth:\n  registration: { cimd_hosts: [app.example.com, \"*.example.com\", \"https://a.example\", localhost, 10.0.0.1] }\n"
    says r#"
        drawbridge.yaml:2:49: auth.registration.cimd_hosts[1]: not the name of a host
          hint: write a name alone and in lower case, such as `app.example.com`; there are no wildcards
        drawbridge.yaml:2:66: auth.registration.cimd_hosts[2]: not the name of a host
          hint: write a name alone and in lower case, such as `app.example.com`; there are no wildcards
        drawbridge.yaml:2:87: auth.registration.cimd_hosts[3]: not the name of a host
          hint: write a name alone and in lower case, such as `app.example.com`; there are no wildcards
        drawbridge.yaml:2:98: auth.registration.cimd_hosts[4]: not the name of a host
          hint: write a name alone and in lower case, such as `app.example.com`; there are no wildcards
    "#;

    services_that_are_easy_to_play = "auth:\n  introspection_clients: [{ id: a, secret: short }, { id: a, secret: 0123456789abcdef0123456789abcdef }, { id: \"\", secret: 0123456789abcdef0123456789abcdef }]\n"
    says r#"
        drawbridge.yaml:2:36: auth.introspection_clients[0].secret: too short: at least 32 characters are needed
          hint: make one with `openssl rand -hex 32`
        drawbridge.yaml:2:55: auth.introspection_clients[1].id: not an id, or there twice
          hint: give each service a name of its own, such as `tickets`
        drawbridge.yaml:2:108: auth.introspection_clients[2].id: not an id, or there twice
          hint: give each service a name of its own, such as `tickets`
    "#;

    clients_that_can_not_be_told_apart_or_prove_nothing = "auth:\n  clients:\n  - { id: a, secret: short, grants: [client_credentials] }\n  - { id: a, grants: [] }\n  - { id: https://a/b, jwks: '{}', grants: [id_jag], scopes: [admin] }\n  - { id: b, secret: 0123456789abcdef0123456789abcdef, jwks: x, grants: [authorization_code] }\n  id_jag: [{ issuer: \"http://login.example.com\", jwks_uri: x }]\n"
    says r#"
        drawbridge.yaml:3:14: auth.clients[0].secret: too short: at least 32 characters are needed
          hint: make one with `openssl rand -hex 32`
        drawbridge.yaml:4:5: auth.clients[1]: a client needs one thing to prove with who it is
          hint: give it a `secret` or `jwks`
        drawbridge.yaml:4:7: auth.clients[1].id: not an id, or there twice
          hint: give each client a name of its own, such as `nightly`
        drawbridge.yaml:4:14: auth.clients[1].grants: a client without a way to get a token
          hint: name some of `authorization_code`, `client_credentials`, `id_jag`
        drawbridge.yaml:5:7: auth.clients[2].id: not an id, or there twice
          hint: give each client a name of its own, such as `nightly`
        drawbridge.yaml:5:24: auth.clients[2].jwks: not a set of keys that can be used
          hint: it is JSON such as `{"keys": [...]}`, with public keys for ES256 or RS256 alone
        drawbridge.yaml:5:54: auth.clients[2].scopes: not scopes of endpoints
          hint: use some of mcp:read, mcp:write
        drawbridge.yaml:6:5: auth.clients[3]: `authorization_code` needs a redirect URI
          hint: name where it may be answered: `redirect_uris: [https://app.example.com/callback]`
        drawbridge.yaml:6:5: auth.clients[3]: a client needs one thing to prove with who it is
          hint: give it a `secret` or `jwks`
        drawbridge.yaml:7:14: auth.id_jag[0].issuer: not an https URL, or there twice
          hint: write it exactly as in its tokens, such as `https://login.example.com`, and once
        drawbridge.yaml:7:50: auth.id_jag[0].jwks_uri: not an https URL
          hint: leave it out if the issuer's metadata name it
    "#;

    token_for_two_days = "auth: { access_token_ttl: 48h }\n"
    says r#"
        drawbridge.yaml:1:9: auth.access_token_ttl: too long
          hint: the most is `1day`
    "#;

    policies_where_nobody_is_asked = "backends: { a: { url: http://a/mcp } }\npolicies: [{ allow: { backends: [a] } }]\n"
    says r#"
        drawbridge.yaml:2:1: policies: nobody is asked who they are, so nothing can depend on it
          hint: set `auth.mode`; to leave something out for everybody, use `tools` of an endpoint
    "#;

    policies_without_a_matter = "auth: { mode: tokens }\nbackends: { a: { url: http://a/mcp } }\npolicies:\n  - when: { kind: user }\n  - { allow: { backends: [a] }, deny: { backends: [a] } }\n  - allow: { backends: [a], tools: [] }\n"
    says r#"
        drawbridge.yaml:4:5: policies[0]: a policy has `allow` or `deny`, and not both
          hint: write `allow: { backends: [...], tools: [...] }`, or `deny`
        drawbridge.yaml:5:5: policies[1]: a policy has `allow` or `deny`, and not both
          hint: write `allow: { backends: [...], tools: [...] }`, or `deny`
        drawbridge.yaml:6:29: policies[2].allow.tools: the list is empty
          hint: name some, or remove the key, which then stands for all
    "#;

    policies_with_nothing_under_a_key = "auth: { mode: tokens }\nbackends: { a: { url: http://a/mcp } }\nendpoints: { b: { backends: [a], tools: { allow: [] } } }\npolicies:\n  - allow: { backends: [a] }\n    when: { groups_any: [] }\n  - allow: { backends: [a] }\n    when:\n"
    says r#"
        drawbridge.yaml:3:43: endpoints.b.tools.allow: the list is empty
          hint: name some, or remove the key, which then stands for all
        drawbridge.yaml:6:5: policies[0].when: there is nothing under it
          hint: name whom it is for, or remove the key, which then stands for everybody
        drawbridge.yaml:6:13: policies[0].when.groups_any: the list is empty
          hint: name some, or remove the key, which then stands for all
        drawbridge.yaml:8:5: policies[1].when: there is nothing under it
          hint: name whom it is for, or remove the key, which then stands for everybody
    "#;

    policies_that_are_commented_out = "auth: { mode: tokens }\npolicies:\n"
    says r#"
        drawbridge.yaml:2:1: policies: there is nothing under it
          hint: write policies, `[]` to deny everything, or remove the key to allow everything
    "#;

    patterns_that_are_none = "backends:\n  a: { url: http://a/mcp, read_tools: [\"\"], elicitation_hosts: [x, \"\"] }\nendpoints:\n  b:\n    backends: [a]\n    tools: { allow: [\"a__*\", \"\"] }\n"
    says r#"
        drawbridge.yaml:2:40: backends.a.read_tools[0]: neither a name nor a pattern
          hint: write a name, or a pattern of 1 to 256 bytes in which `*` is any text
        drawbridge.yaml:2:68: backends.a.elicitation_hosts[1]: neither a name nor a pattern
          hint: write a name, or a pattern of 1 to 256 bytes in which `*` is any text
        drawbridge.yaml:6:30: endpoints.b.tools.allow[1]: neither a name nor a pattern
          hint: write a name, or a pattern of 1 to 256 bytes in which `*` is any text
    "#;

    policies_about_what_there_is_not = "auth: { mode: tokens }\nbackends: { tickets: { url: http://a/mcp } }\npolicies:\n  - allow: { backends: [tickest, \"tick*\"] }\n    when: { endpoints: [ticket], scopes_all: [mcp:reed], networks: [10.0.0.0/33] }\n"
    says r#"
        drawbridge.yaml:4:25: policies[0].allow.backends[0]: there is no backend `tickest`
          hint: did you mean `tickets`?
        drawbridge.yaml:5:25: policies[0].when.endpoints[0]: there is no endpoint `ticket`
          hint: did you mean `tickets`?
        drawbridge.yaml:5:47: policies[0].when.scopes_all[0]: there is no scope `mcp:reed`
          hint: did you mean `mcp:read`?
        drawbridge.yaml:5:69: policies[0].when.networks[0]: not a network
          hint: write it as `10.20.0.0/16`
    "#;

    list_that_is_kept_for_two_days = "backends:\n  t: { url: http://a/mcp, list_ttl: 2d }\n"
    says r#"
        drawbridge.yaml:2:27: backends.t.list_ttl: too long
          hint: the most is `1day`
    "#;

    first_token_that_anybody_guesses = "admin: { bootstrap_token: changeme-changeme-changeme-changeme }\n"
    says r#"
        drawbridge.yaml:1:10: admin.bootstrap_token: too easy to guess: at least 32 random characters are needed
          hint: make one with `openssl rand -hex 32`
    "#;

    proxy_that_is_a_name = "public: { trusted_proxies: [balancer] }\n"
    says r#"
        drawbridge.yaml:1:29: public.trusted_proxies[0]: not a network
          hint: write an address, or a network such as `10.0.0.0/8`
    "#;

    open_to_all = "public:\n  listen: 0.0.0.0:8080\n"
    says r#"
        drawbridge.yaml:2:3: public.listen: anyone who reaches 0.0.0.0:8080 could call every backend, since auth.mode is `none`
          hint: ask callers for a token (`auth: { mode: embedded }` or `tokens`), listen on 127.0.0.1, or say in the file `auth: { mode: none, i_know_this_is_open: true }`
    "#;

    admin_open_to_all = "admin:\n  listen: 0.0.0.0:9090\n"
    says r#"
    drawbridge.yaml:2:3: admin.listen: not all of this listener asks for a credential, so it stays on loopback
      hint: listen on 127.0.0.1; for orchestrators and metrics set `admin.probes: 0.0.0.0:9091`
    "#;

    unknown_backend = "backends:\n  tickets: { url: http://a/mcp }\nendpoints:\n  support:\n    backends:\n      - tikets\n"
    says r#"
        drawbridge.yaml:6:9: endpoints.support.backends[0]: there is no backend `tikets`
          hint: did you mean `tickets`?
    "#;

    backend_named_twice = "backends:\n  a: { url: http://a/mcp }\nendpoints:\n  b: { backends: [a, a] }\n"
    says r#"
        drawbridge.yaml:4:22: endpoints.b.backends[1]: the backend `a` is named twice
          hint: keep one of the two
    "#;

    backend_and_endpoint_of_one_name = "backends:\n  a: { url: http://a/mcp }\nendpoints:\n  a: { backends: [a] }\n"
    says r#"
        drawbridge.yaml:4:3: endpoints.a: a backend is called `a` too, and both would be `/mcp/a`
          hint: rename one of them
    "#;

    not_a_url = "backends:\n  t:\n    url: tickets.internal/mcp\n"
    says r#"
        drawbridge.yaml:3:5: backends.t.url: not an http or https URL
          hint: write it in full, such as `https://tickets.internal/mcp`
    "#;

    password_in_a_url = "backends:\n  t:\n    url: http://me:hunter2@a/mcp\n"
    says r#"
        drawbridge.yaml:3:5: backends.t.url: user and password can't be part of a URL
          hint: move them to `headers`, as `Authorization: { env: NAME }`
    "#;

    public_url_with_a_path = "public: { url: \"https://a.example/mcp\" }\n"
    says r#"
        drawbridge.yaml:1:11: public.url: not the URL of a web server without a path
          hint: write scheme, host and port only, such as `https://mcp.example.com`
    "#;

    wildcard_origin = "public:\n  allowed_origins: [\"https://a.example\", \"*\"]\n"
    says r#"
        drawbridge.yaml:2:42: public.allowed_origins[1]: not an origin
          hint: write each one in full, such as `https://app.example.com`; there are no wildcards
    "#;

    origins_that_are_none = "public:\n  allowed_origins: [\"null\", \"https://*.a.example\", \"file://\", \"app://a/b\", \"https://me@a.example\"]\n"
    says r#"
        drawbridge.yaml:2:21: public.allowed_origins[0]: not an origin
          hint: write each one in full, such as `https://app.example.com`; there are no wildcards
        drawbridge.yaml:2:29: public.allowed_origins[1]: not an origin
          hint: write each one in full, such as `https://app.example.com`; there are no wildcards
        drawbridge.yaml:2:52: public.allowed_origins[2]: not an origin
          hint: write each one in full, such as `https://app.example.com`; there are no wildcards
        drawbridge.yaml:2:63: public.allowed_origins[3]: not an origin
          hint: write each one in full, such as `https://app.example.com`; there are no wildcards
        drawbridge.yaml:2:76: public.allowed_origins[4]: not an origin
          hint: write each one in full, such as `https://app.example.com`; there are no wildcards
    "#;

    host_with_a_scheme = "public:\n  allowed_hosts: [\"https://a.example\"]\n"
    says r#"
        drawbridge.yaml:2:19: public.allowed_hosts[0]: not a host
          hint: write a host, with a port if need be: `mcp.example.com` or `[::1]:8080`
    "#;

    short_seal_key = "seal:\n  keys:\n    - id: a\n      key: aGVsbG8=\n"
    says r#"
        drawbridge.yaml:4:7: seal.keys[0].key: not 32 bytes in base64
          hint: make one with `openssl rand -base64 32`
    "#;

    seal_key_twice = "seal:\n  keys:\n    - { id: a, key: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= }\n    - { id: a, key: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= }\n"
    says r#"
        drawbridge.yaml:4:9: seal.keys[1].id: the name is empty or used twice
          hint: give each key a name of its own, such as `k2`
    "#;

    variable_of_a_secret_not_set = "backends:\n  t:\n    url: http://a/mcp\n    headers:\n      Authorization: { env: NOPE }\n"
    says r#"
        drawbridge.yaml:5:7: backends.t.headers.Authorization: environment variable NOPE is not set
          hint: set NOPE where the gateway is started
    "#;

    file_of_a_secret_not_there = "backends:\n  t:\n    url: http://a/mcp\n    headers:\n      Authorization: { file: /no/such/file }\n"
    says r#"
        drawbridge.yaml:5:7: backends.t.headers.Authorization: can't read the secret from /no/such/file: No such file or directory (os error 2)
          hint: check the path and who may read it
    "#;

    header_of_the_gateway = "backends:\n  t:\n    url: http://a/mcp\n    headers:\n      Content-Length: \"3\"\n"
    says r#"
        drawbridge.yaml:5:7: backends.t.headers.Content-Length: the gateway writes this header itself
          hint: remove the key
    "#;

    header_that_can_t_be_sent = "backends:\n  t:\n    url: http://a/mcp\n    headers:\n      X-Key: \"a\\nb\"\n"
    says r#"
        drawbridge.yaml:5:7: backends.t.headers.X-Key: the value can't be sent in a header
          hint: remove line breaks and control characters
    "#;

    not_a_network = "outbound:\n  allow_networks: [10.0.0.0/8, 10.0.0.0/33]\n"
    says r#"
        drawbridge.yaml:2:32: outbound.allow_networks[1]: not a network
          hint: write an address and a prefix length, such as `10.0.0.0/8` or `fd00::/8`
    "#;

    not_a_proxy = "outbound:\n  proxy: { url: \"socks5://a:1\" }\n"
    says r#"
        drawbridge.yaml:2:12: outbound.proxy.url: not the URL of a proxy
          hint: write it as `http://proxy.example.com:3128`
    "#;

    not_a_filter = "log: { level: \"a=b=c\" }\n"
    says r#"
        drawbridge.yaml:1:8: log.level: not a log filter
          hint: use a level such as `info`, or `info,drawbridge_upstream=debug`
    "#;

    timeout_of_zero = "backends:\n  t:\n    url: http://a/mcp\n    timeout: 0s\n"
    says r#"
        drawbridge.yaml:4:5: backends.t.timeout: must be longer than 0
          hint: name a duration such as `30s`, or remove the key
    "#;

    duration_beyond_a_year = "drain: { deadline: 9000d }\n"
    says r#"
        drawbridge.yaml:1:10: drain.deadline: not a usable value
          hint: write a duration with a unit such as `500ms`, `30s`, `10m` or `1h`, at most `365d`
    "#;

    word_that_is_no_level = "log:\n  level: verbose\n"
    says r#"
        drawbridge.yaml:2:3: log.level: there is no level `verbose`
          hint: use one of: error, warn, info, debug, trace, off
    "#;

    level_with_a_slip = "log: { level: \"debgu,drawbridge_upstream=trace\" }\n"
    says r#"
        drawbridge.yaml:1:8: log.level: there is no level `debgu`
          hint: did you mean `debug`?
    "#;

    bundle_that_is_not_there = "outbound: { ca_bundle: /no/such/ca.pem }\nbackends:\n  t:\n    url: https://a/mcp\n    ca_bundle: [/dev/null]\n"
    says r#"
        drawbridge.yaml:1:13: outbound.ca_bundle: /no/such/ca.pem: I/O error: No such file or directory (os error 2)
          hint: name a PEM file with the certificates of authorities
        drawbridge.yaml:5:5: backends.t.ca_bundle: /dev/null: no certificate in the file (PEM is expected)
          hint: name a PEM file with the certificates of authorities
    "#;

    directory_that_is_not_there = "backends:\n  t:\n    command: npx\n    cwd: /no/such/directory\n"
    says r#"
        drawbridge.yaml:4:5: backends.t.cwd: /no/such/directory is not a directory
          hint: create it, or name another one
    "#;

    one_address_for_two_listeners = "public:\n  listen: 127.0.0.1:9090\nadmin: { probes: \"0.0.0.0:9090\" }\n"
    says r#"
        drawbridge.yaml:3:1: admin.listen: 127.0.0.1:9090 can't be had beside public.listen at 127.0.0.1:9090
          hint: choose another port for one of them; 0 takes a free one
        drawbridge.yaml:3:10: admin.probes: 0.0.0.0:9090 can't be had beside public.listen at 127.0.0.1:9090
          hint: choose another port for one of them; 0 takes a free one
    "#;

    variable_in_quotes_in_a_url = "backends:\n  t:\n    url: \"${SCHEME}://a/mcp\"\n"
    says r#"
        drawbridge.yaml:3:5: backends.t.url: not an http or https URL
          hint: `${NAME}` in quotes is not replaced: leave the quotes out
    "#;

    credentials_of_another_kind = "backends:\n  t:\n    url: http://a/mcp\n    headers: { Authorization: x, Host: y, Mcp-Thing: z }\n    auth: { kind: header, value: Bearer x, client_id: y }\n"
    says r#"
        drawbridge.yaml:4:34: backends.t.headers.Host: the gateway writes this header itself
          hint: remove the key
        drawbridge.yaml:4:43: backends.t.headers.Mcp-Thing: the gateway writes this header itself
          hint: remove the key
        drawbridge.yaml:5:5: backends.t.auth: `headers` has the header authorization too
          hint: keep one of the two
        drawbridge.yaml:5:44: backends.t.auth.client_id: this key goes with another kind
          hint: remove the key
    "#;

    credentials_that_lack_something = "backends:\n  a:\n    url: http://a/mcp\n    auth: { kind: basic, user: \"a:b\" }\n  b:\n    url: http://a/mcp\n    auth: { kind: client_credentials, client_id: x }\n  c:\n    url: http://a/mcp\n    auth: { kind: client_credentials, token_endpoint: http://a/t, client_id: x, client_secret: y, scopes: [a b] }\n"
    says r#"
        drawbridge.yaml:4:5: backends.a.auth: this kind needs `password`
          hint: add `password`
        drawbridge.yaml:4:26: backends.a.auth.user: not a user
          hint: a user of HTTP Basic has no colon and no control characters
        drawbridge.yaml:7:5: backends.b.auth: this kind needs `client_secret`
          hint: add `client_secret`
        drawbridge.yaml:10:39: backends.c.auth.token_endpoint: not an https URL
          hint: secrets are sent there: write an https URL without user and password, such as `https://login.example.com`
        drawbridge.yaml:10:108: backends.c.auth.scopes[0]: not a scope: `a b`
          hint: write each one by itself
    "#;

    credentials_from_a_server_that_nobody_names = "backends:\n  t:\n    url: http://a/mcp\n    auth: { kind: client_credentials, client_id: x, client_secret: y }\n"
    says r#"
        drawbridge.yaml:4:5: backends.t.auth: this kind needs `issuer` or `token_endpoint` where there is no database
          hint: add `issuer: https://login.example.com`
    "#;

    accounts_of_users_where_nobody_logs_in = "backends:\n  t:\n    url: http://a/mcp\n    session_scope: shared\n    auth: { kind: user_oauth, client_secret: x }\n"
    says r#"
        drawbridge.yaml:4:5: backends.t.session_scope: users with accounts of their own can't share a session
          hint: remove the key, or use `principal`
        drawbridge.yaml:5:13: backends.t.auth.kind: users have accounts only where the gateway logs them in
          hint: users log in in a browser: set `auth: { mode: embedded }`
        drawbridge.yaml:5:31: backends.t.auth.client_secret: a secret without an id
          hint: add `client_id`
    "#;

    keys_of_users_that_can_not_be_sent = "backends:\n  t:\n    url: http://a/mcp\n    headers: { X-Key: x }\n    auth: { kind: user_secret, header: x-key, scheme: \"a b\", help: /keys, value: y }\n"
    says r#"
        drawbridge.yaml:5:5: backends.t.auth: `headers` has the header x-key too
          hint: keep one of the two
        drawbridge.yaml:5:13: backends.t.auth.kind: users have accounts only where the gateway logs them in
          hint: users log in in a browser: set `auth: { mode: embedded }`
        drawbridge.yaml:5:47: backends.t.auth.scheme: not a scheme: `a b`
          hint: one word, such as `Bearer` or `Token`, or "" for nothing
        drawbridge.yaml:5:62: backends.t.auth.help: not a URL
          hint: write the https URL of the page at which users get a key, without user and password
        drawbridge.yaml:5:75: backends.t.auth.value: this key goes with another kind
          hint: remove the key
    "#;

    tokens_to_exchange_where_nobody_has_any = "auth: { mode: embedded }\nbackends:\n  t:\n    url: http://a/mcp\n    auth: { kind: token_exchange, client_secret: x, value: y }\n  u:\n    url: http://a/mcp\n    session_scope: shared\n    auth: { kind: token_exchange, issuer: https://a, token_endpoint: https://a/t }\n"
    says r#"
        drawbridge.yaml:5:13: backends.t.auth.kind: users have nothing that could be exchanged
          hint: name the identity provider that users log in with: `auth: { mode: embedded, login: { issuer: https://login.example.com, client_id: drawbridge } }`
        drawbridge.yaml:5:35: backends.t.auth.client_secret: a secret without an id
          hint: add `client_id`
        drawbridge.yaml:5:53: backends.t.auth.value: this key goes with another kind
          hint: remove the key
        drawbridge.yaml:9:5: backends.u.auth: tokens are at `token_endpoint` or where `issuer` says, not both
          hint: keep `issuer` where the server has metadata, `token_endpoint` where it has none
    "#;

    tokens_to_exchange_where_nobody_logs_in = "auth: { mode: tokens }\nbackends:\n  t:\n    url: http://a/mcp\n    session_scope: shared\n    auth: { kind: token_exchange }\n"
    says r#"
        drawbridge.yaml:5:5: backends.t.session_scope: users with accounts of their own can't share a session
          hint: remove the key, or use `principal`
        drawbridge.yaml:6:13: backends.t.auth.kind: users have accounts only where the gateway logs them in
          hint: users log in in a browser: set `auth: { mode: embedded }`
    "#;

    words_of_a_provider_for_nobody = "auth: { mode: embedded }\nbackends:\n  t:\n    url: http://a/mcp\n    auth: { kind: id_jag, issuer: http://as.example, client_id: g, audience: x }\n  u:\n    url: http://a/mcp\n    session_scope: shared\n    auth: { kind: id_jag }\n"
    says r#"
        drawbridge.yaml:5:13: backends.t.auth.kind: users have nothing that could be exchanged
          hint: name the identity provider that users log in with: `auth: { mode: embedded, login: { issuer: https://login.example.com, client_id: drawbridge } }`
        drawbridge.yaml:5:27: backends.t.auth.issuer: not an https URL
          hint: secrets are sent there: write an https URL without user and password, such as `https://login.example.com`
        drawbridge.yaml:5:68: backends.t.auth.audience: this key goes with another kind
          hint: remove the key
        drawbridge.yaml:9:5: backends.u.auth: this kind needs `issuer`
          hint: add `issuer`
        drawbridge.yaml:9:5: backends.u.auth: this kind needs `client_id`
          hint: add `client_id`
    "#;

    callers_that_can_not_be_told_of = "backends:\n  t:\n    url: http://a/mcp\n    session_scope: shared\n    identity_jwt: true\n    headers: { x-a: \"{principal.sub}\", x-b: y }\n    caller_headers: { X-B: \"{principal.sub}\", X-C: \"{principal.mail}\", X-D: fixed, X-E: \"{principal.sub\", Drawbridge-Identity: \"{principal.sub}\", X-F: \"\\n{principal.sub}\" }\n    auth: { kind: header, header: x-c, value: x }\n"
    says r#"
        drawbridge.yaml:4:5: backends.t.session_scope: callers that a backend is told of can't share a session
          hint: remove the key, or use `principal`
        drawbridge.yaml:5:5: backends.t.identity_jwt: there are no keys to sign with in this mode
          hint: backends check the token with the keys of `auth: { mode: embedded }`; `caller_headers` need none
        drawbridge.yaml:6:16: backends.t.headers.x-a: these headers are the same for all callers
          hint: what is of the caller goes into `caller_headers`
        drawbridge.yaml:7:5: backends.t.caller_headers: nobody is asked who they are, so drawbridge-identity is never sent
          hint: set `auth.mode`, or remove the key
        drawbridge.yaml:7:5: backends.t.caller_headers: nobody is asked who they are, so x-b is never sent
          hint: set `auth.mode`, or remove the key
        drawbridge.yaml:7:23: backends.t.caller_headers.X-B: this header is given twice
          hint: case makes no difference: keep one of the two
        drawbridge.yaml:7:47: backends.t.caller_headers.X-C: there is no `principal.mail`
          hint: did you mean `email`?
        drawbridge.yaml:7:72: backends.t.caller_headers.X-D: nothing in it is of the caller
          hint: what is the same for all callers goes into `headers`
        drawbridge.yaml:7:84: backends.t.caller_headers.X-E: a `{principal.` without its `}`
          hint: write it as `{principal.sub}`
        drawbridge.yaml:7:107: backends.t.caller_headers.Drawbridge-Identity: the gateway writes this header itself
          hint: remove the key
        drawbridge.yaml:7:147: backends.t.caller_headers.X-F: the value can't be sent in a header
          hint: remove line breaks, control characters and what is no ASCII
        drawbridge.yaml:8:5: backends.t.auth: `caller_headers` has the header x-c too
          hint: keep one of the two
    "#;

    callers_that_two_issuers_name = "auth: { mode: external, external: [{ issuer: https://a.example }, { issuer: https://b.example }] }\nbackends:\n  t:\n    url: http://a/mcp\n    caller_headers: { X-B: \"{principal.sub}\", X-C: \"{principal.email}\" }\n    identity_jwt: true\n"
    says r#"
        drawbridge.yaml:5:5: backends.t.caller_headers: who x-b means depends on the issuer
          hint: two issuers may call two people the same: keep one of `auth.external`
        drawbridge.yaml:6:5: backends.t.identity_jwt: there are no keys to sign with in this mode
          hint: backends check the token with the keys of `auth: { mode: embedded }`; `caller_headers` need none
    "#;

    a_secret_for_another_server = "auth:\n  mode: embedded\n  login: { issuer: https://id.example, client_id: g, client_secret: x }\nbackends:\n  t:\n    url: http://a/mcp\n    auth: { kind: token_exchange, issuer: https://other.example }\n  u:\n    url: http://a/mcp\n    auth: { kind: token_exchange, issuer: https://id.example }\n  v:\n    url: http://a/mcp\n    auth: { kind: token_exchange, token_endpoint: https://other.example/t, client_id: h }\n"
    says r#"
        drawbridge.yaml:7:5: backends.t.auth: this kind needs `client_id` at a server that users don't log in with
          hint: add `client_id`, as the gateway is known at that server
    "#;

    several_at_once = "redis: { url: \"redis://a\" }\nauth: { mode: tokens }\nbackends:\n  b: { url: x }\nendpoints:\n  e: { backends: [c] }\n"
    says r#"
        drawbridge.yaml:1:1: database: instances that share Redis need a database that they share, for tokens and logins
          hint: set `database: { url: postgres://... }` (--database)
        drawbridge.yaml:1:10: redis.url: instances that share state need the same seal keys, and `seal.keys` has none
          hint: make one with `openssl rand -base64 32`, and give it to all instances as `seal: { keys: [{ id: k1, key: { env: DRAWBRIDGE_SEAL_K1 } }] }`
        drawbridge.yaml:4:8: backends.b.url: not an http or https URL
          hint: write it in full, such as `https://tickets.internal/mcp`
        drawbridge.yaml:6:19: endpoints.e.backends[0]: there is no backend `c`
          hint: use one of: b
    "#;
}
