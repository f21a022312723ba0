use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;

fn subject(kind: SubjectKind, id: &str) -> Subject {
    Subject { kind, id: id.to_owned(), client: "https://host.example/client.json".to_owned() }
}

fn ann() -> Subject {
    subject(SubjectKind::User, "u1")
}

fn person(email: &str, name: &str, groups: &[&str]) -> Person {
    let text = |text: &str| Some(text.to_owned());
    Person {
        email: text(email),
        name: text(name),
        groups: groups.iter().map(ToString::to_string).collect(),
        version: 1,
    }
}

fn filled(template: &str, subject: &Subject, person: Option<&Person>) -> Option<String> {
    Template::parse(template).unwrap().fill(subject, person)
}

#[test]
fn places_are_filled_with_what_is_known_and_nothing_is_sent_where_it_is_not() {
    let known = person("ann@example.com", "Ann B. Müller", &["dev", "a,b", "ops team"]);
    for (template, value) in [
        ("{principal.sub}", "u1"),
        ("<{principal.email}>", "<ann@example.com>"),
        ("{principal.name}", "Ann B. M%C3%BCller"),
        ("{principal.groups}", "a%2Cb,dev,ops team"),
        ("{principal.client}", "https://host.example/client.json"),
        ("user={principal.sub}; {x} mail={principal.email}", "user=u1; {x} mail=ann@example.com"),
    ] {
        assert_eq!(filled(template, &ann(), Some(&known)).as_deref(), Some(value), "{template}");
    }
    let nothing = Person::default();
    let empty = person("", "", &[""]);
    for template in
        ["{principal.email}", "x {principal.name}", "{principal.groups}", "{principal.sub} {principal.name}"]
    {
        for known in [None, Some(&nothing), Some(&empty)] {
            assert_eq!(filled(template, &ann(), known), None, "{template}");
        }
    }
}

#[test]
fn nobody_is_called_as_a_service_is() {
    let of = |kind, id| filled("{principal.sub}", &subject(kind, id), None);
    assert_eq!(of(SubjectKind::Service, "ci").as_deref(), Some("service:ci"));
    assert_eq!(of(SubjectKind::External, "ci").as_deref(), Some("ci"));
    assert_eq!(of(SubjectKind::External, "service:ci"), None);
    assert_eq!(of(SubjectKind::External, ""), None);
}

#[test]
fn texts_that_are_no_templates() {
    for (text, why) in [
        ("fixed", BadTemplate::Fixed),
        ("", BadTemplate::Fixed),
        ("{principal}", BadTemplate::Fixed),
        ("{principal.mail}", BadTemplate::Unknown("mail".to_owned())),
        ("{principal.}", BadTemplate::Unknown(String::new())),
        ("{principal.sub", BadTemplate::Open),
        ("a\r\nX-Other: {principal.sub}", BadTemplate::Unsendable),
        ("ü {principal.sub}", BadTemplate::Unsendable),
    ] {
        assert_eq!(Template::parse(text), Err(why), "{text}");
    }
}

proptest! {
    #[test]
    fn whatever_somebody_is_called_it_is_one_value_and_theirs_alone(
        one in "\\PC{0,20}|[\\x00-\\x7f]{0,20}", other in "\\PC{0,20}|[ ,%a]{0,6}",
    ) {
        let of = |name: &str| filled("n={principal.name}", &ann(), Some(&person("", name, &[])));
        let (made, others) = (of(&one), of(&other));
        prop_assert_eq!(made.is_none(), one.is_empty());
        if let Some(made) = &made {
            let value = http::HeaderValue::from_str(made).unwrap();
            // What spaces at its ends would be taken off is still there.
            prop_assert_eq!(value.to_str().unwrap().trim(), made);
            prop_assert!(!made.contains([',', ';', '"', '\\']));
            prop_assert_eq!(made.as_str() == others.as_deref().unwrap_or_default(), one == other);
        }
        let groups = |groups: &[&str]| filled("{principal.groups}", &ann(), Some(&person("", "", groups)));
        let both = groups(&[&one, &other]);
        if !one.is_empty() && !other.is_empty() && one != other {
            prop_assert_eq!(both.unwrap().split(',').count(), 2);
        }
    }
}

/// Knows one user, and counts how often it was asked.
#[derive(Default)]
struct One {
    person: Mutex<Option<Person>>,
    changed: Mutex<Option<i64>>,
    is_away: std::sync::atomic::AtomicBool,
    asked: AtomicUsize,
}

#[async_trait]
impl People for One {
    async fn find(&self, _: &str) -> Result<Option<Person>, String> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.is_away.load(Ordering::SeqCst) {
            return Err("the database is away".to_owned());
        }
        Ok(self.person.lock().clone())
    }

    fn has_changed(&self, _: &str, version: i64) -> bool {
        *self.changed.lock() == Some(version)
    }
}

fn telling(one: &Arc<One>, headers: &[(&str, &str)]) -> OfCaller {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), Template::parse(value).unwrap()));
    let callers = Arc::new(Callers::new(one.clone(), None));
    OfCaller::new("b", headers.collect(), callers, None)
}

async fn sent(told: &OfCaller, whom: &Principal) -> Result<Vec<String>, Fault> {
    let credential = told.find(whom).await?;
    Ok(credential.headers().map(|(name, value)| format!("{name}={value}")).collect())
}

#[tokio::test(start_paused = true)]
async fn what_has_changed_is_told_at_once_and_what_has_not_is_not_looked_up_again() {
    let one = Arc::new(One::default());
    *one.person.lock() = Some(person("a@x", "", &[]));
    let told = telling(&one, &[("x-mail", "{principal.email}"), ("x-name", "{principal.name}")]);
    let (whom, other) = (Principal::named("p").of(ann()), Principal::named("q").of(ann()));
    for _ in 0..3 {
        assert_eq!(sent(&told, &whom).await.unwrap(), ["x-mail=a@x"]);
        assert_eq!(sent(&told, &other).await.unwrap(), ["x-mail=a@x"]);
    }
    assert_eq!(one.asked.load(Ordering::SeqCst), 1);
    // Of somebody who was not asked nothing is told.
    assert!(sent(&told, &Principal::anonymous()).await.unwrap().is_empty());

    *one.person.lock() = Some(Person { version: 2, ..person("b@x", "B", &[]) });
    assert_eq!(sent(&told, &whom).await.unwrap(), ["x-mail=a@x"]);
    *one.changed.lock() = Some(1);
    assert_eq!(sent(&told, &whom).await.unwrap(), ["x-mail=b@x", "x-name=B"]);
    tokio::time::advance(FRESH).await;
    *one.person.lock() = Some(Person { version: 2, ..person("c@x", "B", &[]) });
    assert_eq!(sent(&told, &whom).await.unwrap(), ["x-mail=c@x", "x-name=B"]);

    // While nobody can be looked up, what was known is told for a while, but not what has changed.
    one.is_away.store(true, Ordering::SeqCst);
    tokio::time::advance(FRESH).await;
    assert_eq!(sent(&told, &whom).await.unwrap(), ["x-mail=c@x", "x-name=B"]);
    *one.changed.lock() = Some(2);
    assert!(matches!(sent(&told, &whom).await, Err(Fault::NoCredential { .. })));
    *one.changed.lock() = None;
    tokio::time::advance(STALE).await;
    assert!(matches!(sent(&told, &whom).await, Err(Fault::NoCredential { .. })));
    // A user who is gone is nobody.
    one.is_away.store(false, Ordering::SeqCst);
    *one.person.lock() = None;
    assert!(matches!(sent(&told, &whom).await, Err(Fault::NoCredential { .. })));
    // Who somebody is needs no look-up.
    let only = telling(&one, &[("x-user", "{principal.sub}")]);
    assert_eq!(sent(&only, &whom).await.unwrap(), ["x-user=u1"]);
}

#[tokio::test]
async fn what_is_too_long_is_not_sent() {
    let one = Arc::new(One::default());
    let groups: Vec<String> = (0..1000).map(|n| format!("a group with number {n}")).collect();
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    *one.person.lock() = Some(person("a@x", "A", &groups));
    let told = telling(&one, &[("x-groups", "{principal.groups}"), ("x-name", "{principal.name}")]);
    assert_eq!(sent(&told, &Principal::named("p").of(ann())).await.unwrap(), ["x-name=A"]);
}
