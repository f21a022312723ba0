use drawbridge_core::BackendName;

use super::*;

fn globs(all: &[&str]) -> Vec<Glob> {
    all.iter().map(|text| Glob::parse(text).unwrap()).collect()
}

fn texts(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(|&text| text.to_owned()).collect()
}

fn facts() -> Facts {
    Facts {
        kind: Kind::User,
        subjects: vec!["u1".to_owned(), "ann".to_owned()],
        groups: texts(&["engineering"]),
        scopes: texts(&["mcp:write"]),
        client: "https://claude.ai/oauth/client".to_owned(),
        endpoint: "/mcp".to_owned(),
        address: Some("10.1.2.3".parse().unwrap()),
        challenge: None,
    }
}

fn rule(effect: Effect, backends: &[&str], tools: &[&str], when: When) -> Rule {
    Rule { effect, backends: globs(backends), what: What { tools: globs(tools), ..What::default() }, when }
}

/// What may be done of `[github.get_x, github.drop_x, docs.get_x]`, each no reader, and a prompt and a resource of docs.
fn seen(rules: Option<Vec<Rule>>, facts: &Facts) -> [bool; 5] {
    let allowance = Arc::new(Rules { rules, step_up: StepUp::Hide }).allow(facts.clone());
    // What another instance makes of it is the same.
    let there = allowance.rules.allow_carried(&allowance.carried().unwrap()).unwrap();
    let tool = Sort::Tool { reads: false };
    [
        ("github", tool, "get_x"),
        ("github", tool, "drop_x"),
        ("docs", tool, "get_x"),
        ("docs", Sort::Prompt, "p"),
        ("docs", Sort::Resource, "docs://p"),
    ]
    .map(|(backend, kind, name)| {
        let backend = BackendName::parse(backend).unwrap();
        let item = Item { backend: &backend, kind, name };
        assert_eq!(allowance.on(&item), there.on(&item));
        allowance.on(&item) == Verdict::Allowed
    })
}

#[test]
fn without_rules_everything_is_allowed_and_with_none_of_them_nothing() {
    assert_eq!(seen(None, &facts()), [true; 5]);
    assert_eq!(seen(Some(Vec::new()), &facts()), [false; 5]);
}

#[test]
fn a_rule_is_about_what_it_names_and_one_that_denies_wins() {
    let everybody = When::default;
    let allow = |backends: &[&str], tools: &[&str]| rule(Effect::Allow, backends, tools, everybody());
    assert_eq!(
        seen(Some(vec![allow(&["github"], &["get_*"])]), &facts()),
        [true, false, false, false, false]
    );
    assert_eq!(seen(Some(vec![allow(&["docs"], &[])]), &facts()), [false, false, true, true, true]);
    let deny = rule(Effect::Deny, &["*"], &["*drop*"], everybody());
    for rules in [vec![allow(&["*"], &[]), deny.clone()], vec![deny, allow(&["*"], &[])]] {
        assert_eq!(seen(Some(rules), &facts()), [true, false, true, true, true]);
    }
    let resources =
        Rule { what: What { resources: globs(&["docs://*"]), ..What::default() }, ..allow(&["docs"], &[]) };
    assert_eq!(seen(Some(vec![resources]), &facts()), [false, false, false, false, true]);
}

#[test]
fn a_rule_is_for_those_who_meet_all_its_conditions() {
    let any = When::default;
    let networks = |text: &str| vec![text.parse().unwrap()];
    let met = [
        When { kind: Some(Kind::User), ..any() },
        When { subjects: globs(&["ann"]), ..any() },
        When { subjects: globs(&["u*"]), ..any() },
        When { groups_any: texts(&["sales", "engineering"]), ..any() },
        When { scopes_all: texts(&["mcp:read"]), ..any() },
        When { clients: globs(&["https://claude.ai/*"]), ..any() },
        When { endpoints: texts(&["/mcp"]), ..any() },
        When { networks: networks("10.0.0.0/8"), ..any() },
    ];
    let unmet = [
        When { kind: Some(Kind::Service), ..any() },
        When { subjects: globs(&["an"]), ..any() },
        When { groups_any: texts(&["sales"]), ..any() },
        When { clients: globs(&["claude.ai"]), ..any() },
        When { endpoints: texts(&["support"]), ..any() },
        When { networks: networks("10.2.0.0/16"), ..any() },
        When { groups_any: texts(&["engineering"]), kind: Some(Kind::Service), ..any() },
    ];
    let all = |when: When| seen(Some(vec![rule(Effect::Allow, &["*"], &[], when)]), &facts());
    met.into_iter().for_each(|when| assert_eq!(all(when.clone()), [true; 5], "{when:?}"));
    unmet.into_iter().for_each(|when| assert_eq!(all(when.clone()), [false; 5], "{when:?}"));
    // Of somebody of whom less is known less is met.
    let unknown = Facts { subjects: Vec::new(), groups: BTreeSet::new(), address: None, ..facts() };
    for when in [
        When { subjects: globs(&["*"]), ..any() },
        When { groups_any: texts(&["engineering"]), ..any() },
        When { networks: networks("0.0.0.0/0"), ..any() },
    ] {
        assert_eq!(seen(Some(vec![rule(Effect::Allow, &["*"], &[], when)]), &unknown), [false; 5]);
    }
}

#[test]
fn what_is_in_no_list_needs_a_rule_for_everything() {
    let backend = BackendName::parse("docs").unwrap();
    let reaches = |rules: Option<Vec<Rule>>, facts: &Facts| {
        let allowance = Arc::new(Rules { rules, step_up: StepUp::Hide }).allow(facts.clone());
        [allowance.reaches(&backend, true), allowance.reaches(&backend, false)]
    };
    let rule =
        |effect: Effect, backends: &[&str], tools: &[&str]| rule(effect, backends, tools, When::default());
    let reader = Facts { scopes: texts(&["mcp:read"]), ..facts() };
    assert_eq!((reaches(None, &facts()), reaches(None, &reader)), ([true; 2], [true, false]));
    assert_eq!(reaches(Some(Vec::new()), &facts()), [false; 2]);
    assert_eq!(reaches(Some(vec![rule(Effect::Allow, &["docs"], &["get_*"])]), &facts()), [true, false]);
    assert_eq!(reaches(Some(vec![rule(Effect::Allow, &["github"], &[])]), &facts()), [false; 2]);
    let all = rule(Effect::Allow, &["*"], &[]);
    assert_eq!(reaches(Some(vec![all.clone()]), &facts()), [true; 2]);
    assert_eq!(reaches(Some(vec![all.clone(), rule(Effect::Deny, &["docs"], &["x"])]), &facts()), [true; 2]);
    assert_eq!(reaches(Some(vec![all, rule(Effect::Deny, &["d*"], &[])]), &facts()), [false; 2]);
}

#[test]
fn tools_that_do_not_only_read_need_a_scope_that_is_hidden_or_asked_for() {
    let reader = Facts { scopes: texts(&["mcp:read"]), ..facts() };
    let backend = BackendName::parse("b").unwrap();
    let on = |step_up: StepUp, facts: &Facts, reads: bool| {
        let rules = Arc::new(Rules { rules: None, step_up });
        rules.allow(facts.clone()).on(&Item { backend: &backend, kind: Sort::Tool { reads }, name: "t" })
    };
    for step_up in [StepUp::Hide, StepUp::Challenge] {
        assert_eq!(on(step_up, &reader, true), Verdict::Allowed);
        assert_eq!(on(step_up, &facts(), false), Verdict::Allowed);
    }
    assert_eq!(on(StepUp::Hide, &reader, false), Verdict::Hidden);
    assert_eq!(on(StepUp::Challenge, &reader, false), Verdict::Lacks("mcp:write"));
}
