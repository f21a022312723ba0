//! Files whose text is at fault already, so that there is nothing to compare with a schema.

use super::broken_files;

broken_files! {
    TEXTUAL:

    variable_not_set = "backends:\n  t:\n    url: ${NOPE}\n"
    says r#"
        drawbridge.yaml:3:10: backends.t.url: environment variable NOPE is not set
          hint: set NOPE, or give a default: ${NOPE:-default}
    "#;

    variable_with_a_message = "data_dir: ${NOPE:?name a directory}\n"
    says r#"
        drawbridge.yaml:1:11: data_dir: environment variable NOPE is not set
          hint: name a directory
    "#;

    key_twice = "public:\n  listen: 127.0.0.1:1\nadmin:\n  listen: 127.0.0.1:2\npublic:\n  listen: 127.0.0.1:3\n"
    says r#"
        drawbridge.yaml:5:1: the key `public` is given twice
          hint: keep one of the two
    "#;

    two_documents = "data_dir: /a\n---\ndata_dir: /b\n"
    says r#"
        drawbridge.yaml:3:1: the file holds more than one document
          hint: remove the line `---` and what follows it
    "#;

    variable_in_a_flow_mapping = "backends:\n  t: { url: ${TOKEN} }\n"
    says r#"
        drawbridge.yaml:2:14: while parsing a flow mapping, did not find expected ',' or '}'
          hint: `${NAME}` can't stand within { } or [ ]: give the key a line of its own, or check indentation (spaces, no tabs), brackets and quotes at and above this place
    "#;

    not_yaml = "public: { listen: \"127.0.0.1:1\"\nadmin: [\n"
    says r#"
        drawbridge.yaml:2:1: while parsing a flow mapping, did not find expected ',' or '}'
          hint: check indentation (spaces, no tabs), brackets and quotes at and above this place
    "#;

    tab_as_indentation = "public:\n\tlisten: 127.0.0.1:1\n"
    says r#"
        drawbridge.yaml:2:2: tabs disallowed within this context (block indentation)
          hint: check indentation (spaces, no tabs), brackets and quotes at and above this place
    "#;

    variables_not_set = "data_dir: ${ONE}\nbackends:\n  t:\n    url: http://${TWO}/mcp\n    timeout: ${THREE:-1}\n"
    says r#"
        drawbridge.yaml:1:11: data_dir: environment variable ONE is not set
          hint: set ONE, or give a default: ${ONE:-default}
        drawbridge.yaml:4:10: backends.t.url: environment variable TWO is not set
          hint: set TWO, or give a default: ${TWO:-default}
        drawbridge.yaml:5:5: backends.t.timeout: can't be a number
          hint: write a duration with a unit such as `500ms`, `30s`, `10m` or `1h`, at most `365d`
    "#;
}
