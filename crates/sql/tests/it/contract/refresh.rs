use std::collections::{BTreeMap, BTreeSet};

use chrono::TimeDelta;
use drawbridge_auth::records::{Grant, NewRefresh, Presented, Records as _, RecordsError, Refreshed};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use crate::fixture::{DAY, Fixture, at, grant, hash, present, refresh, user};

/// A user `u1` with the grant `g1` and its refresh token `r1`.
async fn begin(f: &Fixture) {
    let r = f.records();
    user(r, "u1").await;
    r.redeem(&grant("g1", "u1"), Some(&refresh("r1"))).await.unwrap();
}

async fn go(f: &Fixture, secret: &str, successor: &str, seconds: i64) -> Refreshed {
    f.records().refresh(&present(secret, successor, at(seconds))).await.unwrap()
}

/// What came of it, short.
fn short(refreshed: &Refreshed) -> String {
    match refreshed {
        Refreshed::Rotated(_) => "rotated".to_owned(),
        Refreshed::Again { id, replay, .. } => {
            assert_eq!(*replay, format!("sealed {id}").into_bytes());
            format!("again {id}")
        }
        Refreshed::Dead => "dead".to_owned(),
        Refreshed::OtherClient(_) => "other client".to_owned(),
        Refreshed::Reused(_) => "reused".to_owned(),
    }
}

pub(super) async fn a_live_token_is_rotated(f: &Fixture) {
    begin(f).await;
    let owner = f.b.user("u1").await.unwrap().unwrap();
    let used = |seconds| Grant { last_used_at: at(seconds), ..grant("g1", "u1") };
    assert_eq!(go(f, "r1", "r2", 10).await, Refreshed::Rotated(Box::new((used(10), owner.clone()))));
    assert_eq!(f.b.grant("g1").await.unwrap(), Some(used(10)));
    assert_eq!(f.b.grant_of_refresh(&hash("r2")).await.unwrap(), Some(used(10)));
    assert_eq!(go(f, "r2", "r3", 2000).await, Refreshed::Rotated(Box::new((used(2000), owner))));
    assert_eq!(short(&go(f, "r3", "r3b", 1999).await), "rotated", "another instance's clock may be behind");
    assert_eq!(f.b.grant("g1").await.unwrap(), Some(used(2000)));
    // Ids and secrets are used once.
    let taken = f.records().refresh(&present("r3b", "r1", at(3000))).await.unwrap_err();
    assert!(matches!(taken, RecordsError::Refused(_)), "{taken}");
    assert_eq!(short(&go(f, "r3b", "r4", 3000).await), "rotated", "nothing came of what was refused");
}

pub(super) async fn a_token_that_comes_back_at_once_gets_the_same_successor(f: &Fixture) {
    begin(f).await;
    go(f, "r1", "r2", 10).await;
    let again = go(f, "r1", "r3", 130).await;
    let Refreshed::Again { grant: got, id, replay } = &again else { panic!("{again:?}") };
    assert_eq!((id.as_str(), replay.as_slice()), ("r2", b"sealed r2".as_slice()));
    assert_eq!((&got.0.id, &got.1.id), (&"g1".to_owned(), &"u1".to_owned()));
    assert_eq!(short(&go(f, "r1", "r3", 5).await), "again r2", "another instance's clock may be behind");
    assert_eq!(short(&go(f, "r3", "r4", 20).await), "dead", "what was offered then was not kept");
    // Also while its successor is used already.
    assert_eq!(short(&go(f, "r2", "r5", 40).await), "rotated");
    assert_eq!(short(&go(f, "r1", "r6", 50).await), "again r2");
    assert_eq!(short(&go(f, "r2", "r6", 60).await), "again r5");
}

pub(super) async fn an_answer_that_was_lost_is_given_anew(f: &Fixture) {
    begin(f).await;
    go(f, "r1", "r2", 10).await;
    assert_eq!(short(&go(f, "r1", "r3", 131).await), "rotated");
    assert_eq!(short(&go(f, "r1", "r4", 140).await), "again r3", "the grace begins anew");
    assert_eq!(f.records().grant("g1").await.unwrap().unwrap().revoked_at, None);
    assert_eq!(short(&go(f, "r1", "r4", 10_000).await), "rotated", "as often as it is lost");
    assert_eq!(short(&go(f, "r4", "r5", 20_000).await), "rotated");
    assert_eq!(short(&go(f, "r1", "r6", 20_001).await), "reused");
}

pub(super) async fn an_old_token_that_wins_is_found_out_when_its_first_successor_comes(f: &Fixture) {
    begin(f).await;
    go(f, "r1", "r2", 10).await;
    assert_eq!(short(&go(f, "r1", "r3", 131).await), "rotated");
    let Refreshed::Reused(ended) = go(f, "r2", "r4", 140).await else { panic!("it was replaced") };
    assert_eq!((ended.revoked_at, ended.revoke_reason.as_deref()), (Some(at(140)), Some("refresh_reuse")));
    for secret in ["r1", "r2", "r3", "r4"] {
        assert_eq!(short(&go(f, secret, "r5", 141).await), "dead", "{secret}");
    }
}

pub(super) async fn a_used_token_that_comes_back_late_ends_the_grant(f: &Fixture) {
    begin(f).await;
    go(f, "r1", "r2", 10).await;
    go(f, "r2", "r3", 20).await;
    let reused = go(f, "r1", "r4", 131).await;
    let Refreshed::Reused(ended) = &reused else { panic!("{reused:?}") };
    assert_eq!((ended.revoked_at, ended.revoke_reason.as_deref()), (Some(at(131)), Some("refresh_reuse")));
    assert_eq!(f.b.grant("g1").await.unwrap().as_ref(), Some(&**ended));
    for secret in ["r1", "r2", "r3", "r4"] {
        assert_eq!(short(&go(f, secret, "r5", 132).await), "dead", "{secret}");
    }
}

pub(super) async fn a_successor_that_was_seen_is_in_use(f: &Fixture) {
    begin(f).await;
    for unused in ["nothing", "r\0", "r1"] {
        assert_eq!(f.records().refresh_seen(unused, at(5)).await.unwrap(), None);
    }
    assert_eq!(short(&go(f, "r1", "r2", 10).await), "rotated");
    assert_eq!(short(&go(f, "r1", "r3", 131).await), "rotated");
    for seconds in [132, 133] {
        assert_eq!(f.records().refresh_seen("r3", at(seconds)).await.unwrap(), None);
    }
    assert_eq!(short(&go(f, "r1", "r4", 133).await), "again r3");
    assert_eq!(
        f.records().refresh_seen("r2", at(134)).await.unwrap().as_deref(),
        Some("g1"),
        "r3 is in its place"
    );
    assert_eq!(f.records().refresh_seen("r2", at(135)).await.unwrap(), None, "it was told");
    assert_eq!(short(&go(f, "r1", "r4", 252).await), "reused");
}

pub(super) async fn what_is_no_longer_good_is_dead(f: &Fixture) {
    let r = f.records();
    begin(f).await;
    assert_eq!(short(&go(f, "unknown", "r2", 10).await), "dead");
    assert_eq!(short(&go(f, "r1", "r2", 30 * DAY).await), "dead", "it was not used in time");
    r.set_user_disabled("u1", true, at(0)).await.unwrap();
    assert_eq!(short(&go(f, "r1", "r2", 10).await), "dead", "its user may do nothing");
    r.set_user_disabled("u1", false, at(0)).await.unwrap();
    let long = NewRefresh { expires_at: at(900 * DAY), ..refresh("s1") };
    r.redeem(&grant("g2", "u1"), Some(&long)).await.unwrap();
    assert_eq!(short(&go(f, "s1", "s2", 90 * DAY).await), "dead", "its grant is over");
    r.redeem(&grant("g3", "u1"), Some(&refresh("t1"))).await.unwrap();
    r.revoke_grant("g3", "user", at(5)).await.unwrap();
    assert_eq!(short(&go(f, "t1", "t2", 10).await), "dead", "its grant was revoked");
    assert_eq!(short(&go(f, "r1", "r2", 10).await), "rotated", "none of that changed anything");
    assert_eq!(short(&go(f, "r1", "r3", 30 * DAY).await), "dead", "nor is that a sign of a thief");
}

pub(super) async fn another_client_changes_nothing(f: &Fixture) {
    begin(f).await;
    let foreign = Presented { client: "thief", ..present("r1", "r2", at(10)) };
    for _ in 0..2 {
        let told = f.records().refresh(&foreign).await.unwrap();
        assert_eq!(told, Refreshed::OtherClient(Box::new(grant("g1", "u1"))));
    }
    assert_eq!(f.b.grant("g1").await.unwrap(), Some(grant("g1", "u1")));
    assert_eq!(short(&go(f, "r1", "r2", 10).await), "rotated");
    let late = Presented { now: at(5000), ..foreign };
    assert_eq!(short(&f.records().refresh(&late).await.unwrap()), "other client");
    assert_eq!(f.b.grant("g1").await.unwrap().unwrap().revoked_at, None);
}

/// What comes of twenty presentations of one token at once, on two instances.
async fn twenty(f: &Fixture, secret: &str, seconds: i64) -> Vec<Refreshed> {
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..20 {
        let records = if n % 2 == 0 { f.a.clone() } else { f.b.clone() };
        let presented = present(secret, &format!("{secret}.{n}"), at(seconds));
        tasks.spawn(async move { records.refresh(&presented).await });
    }
    tasks.join_all().await.into_iter().map(Result::unwrap).collect()
}

/// That one rotated, and all others got its successor. Uses that, and returns what came of it.
async fn one_rotated(f: &Fixture, all: &[Refreshed], seconds: i64) -> String {
    assert_eq!(all.iter().filter(|one| matches!(one, Refreshed::Rotated(_))).count(), 1, "{all:?}");
    let again = |one: &Refreshed| match one {
        Refreshed::Again { id, .. } => Some(id.clone()),
        _ => None,
    };
    let ids: Vec<_> = all.iter().filter_map(again).collect();
    assert_eq!(ids.len(), 19);
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let next = format!("{}+", ids[0]);
    assert_eq!(short(&go(f, &ids[0], &next, seconds).await), "rotated");
    next
}

pub(super) async fn of_many_who_present_one_token_one_rotates_it(f: &Fixture) {
    begin(f).await;
    // The first round opens connections; in the others all come at once.
    let mut secret = "r1".to_owned();
    for round in 0..4 {
        let all = twenty(f, &secret, 10 + round).await;
        secret = one_rotated(f, &all, 10 + round).await;
    }
}

pub(super) async fn of_many_who_lost_an_answer_one_rotates_anew(f: &Fixture) {
    begin(f).await;
    let mut secret = "r1".to_owned();
    for round in 1..5 {
        let (lost, now) = (format!("lost {round}"), round * 1000);
        go(f, &secret, &lost, now).await;
        let all = twenty(f, &secret, now + 500).await;
        secret = one_rotated(f, &all, now + 500).await;
    }
}

/// What may happen to a chain. Tokens are counted in the order they were offered in.
#[derive(Debug, Clone)]
enum Step {
    Present { token: usize, later: i64, own: bool },
    Seen { token: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0usize..8, prop_oneof![Just(0), Just(60), Just(121), Just(2 * DAY)], prop::bool::weighted(0.9))
            .prop_map(|(token, later, own)| Step::Present { token, later, own }),
        2 => (0usize..8).prop_map(|token| Step::Seen { token }),
    ]
}

/// A chain as its rules have it, without a database.
#[derive(Default)]
struct Model {
    /// Every token that is kept: when it was used and what for, and whether it arrived.
    tokens: BTreeMap<String, (Option<(i64, String)>, bool)>,
    replaced: BTreeSet<String>,
    ended: bool,
}

impl Model {
    fn present(&mut self, secret: &str, successor: &str, now: i64, own: bool) -> String {
        let Some((used, _)) = self.tokens.get(secret).cloned() else { return "dead".to_owned() };
        if self.ended {
            return "dead".to_owned();
        }
        if !own {
            return "other client".to_owned();
        }
        match used {
            _ if self.replaced.contains(secret) => {
                self.ended = true;
                return "reused".to_owned();
            }
            None => {}
            Some((at, given)) if now - at <= 120 => return format!("again {given}"),
            Some((_, given)) if self.tokens.get(&given) == Some(&(None, false)) => {
                self.replaced.insert(given);
            }
            Some(_) => {
                self.ended = true;
                return "reused".to_owned();
            }
        }
        self.tokens.insert(successor.to_owned(), (None, false));
        self.tokens.insert(secret.to_owned(), (Some((now, successor.to_owned())), self.tokens[secret].1));
        "rotated".to_owned()
    }
}

pub(super) async fn chains_go_as_the_model_says(f: &Fixture) {
    let r = f.records();
    user(r, "u1").await;
    let mut runner = TestRunner::deterministic();
    let strategy = prop::collection::vec(step(), 1..14);
    for case in 0..60 {
        let steps = strategy.new_tree(&mut runner).unwrap().current();
        let name = |token: usize| format!("{case}/{token}");
        r.redeem(&grant(&format!("g{case}"), "u1"), Some(&refresh(&name(0)))).await.unwrap();
        let mut model = Model { tokens: BTreeMap::from([(name(0), (None, false))]), ..Model::default() };
        let (mut now, mut offered) = (10, 0);
        for step in &steps {
            match step {
                Step::Present { token, later, own } => {
                    (now, offered) = (now + later, offered + 1);
                    let (secret, successor) = (name(*token), name(offered));
                    let mut presented = present(&secret, &successor, at(now));
                    presented.client = if *own { "client" } else { "another" };
                    presented.successor.expires_at = at(89 * DAY);
                    presented.grace = TimeDelta::seconds(120);
                    let got = short(&r.refresh(&presented).await.unwrap());
                    assert_eq!(got, model.present(&secret, &successor, now, *own), "{step:?} of {steps:?}");
                }
                Step::Seen { token } => {
                    r.refresh_seen(&name(*token), at(now)).await.unwrap();
                    model.tokens.entry(name(*token)).and_modify(|kept| kept.1 = true);
                }
            }
        }
        assert_eq!(r.grant(&format!("g{case}")).await.unwrap().unwrap().revoked_at.is_some(), model.ended);
    }
}
