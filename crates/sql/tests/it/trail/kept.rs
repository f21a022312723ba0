//! What is too old goes, and what is left can still be gone through; keys change.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use drawbridge_auth::audit::{AuditKeys, CheckpointKind, Trust, Verify};

use super::{SELDOM, World, act, over_both, ring};

over_both!(
    what_is_too_old_goes_up_to_a_checkpoint,
    a_run_that_was_killed_goes_when_all_of_it_is_too_old,
    what_was_changed_is_not_swept,
    keys_that_were_sealed_anew_outlive_their_seal_key,
);

async fn what_is_too_old_goes_up_to_a_checkpoint(world: World) {
    let old = world.run(4, SELDOM).await;
    // A checkpoint after each action.
    let running = world.trail(Duration::ZERO);
    for target in ["a", "b", "c"] {
        act(&running, target).await.unwrap();
    }
    let own = running.chain().await;
    let middle = world.entries(&own).await[2].at + TimeDelta::microseconds(1);
    act(&running, "d").await.unwrap();

    // All of it is from before tomorrow, but the newest checkpoint is what others begin at.
    let swept = world.sweep(middle, &own).await;
    assert!(swept.rows > 6 && swept.broken == 0, "{swept:?}");
    let report = world.report().await;
    assert!(report.holds(), "{:?}", report.findings);
    assert_eq!(world.entries(&old).await, []);
    let left = world.entries(&own).await;
    assert!((1..=4).contains(&left.len()), "{left:?}");
    let cut = world.store().audit_cut(&own).await.unwrap().unwrap();
    assert_eq!(cut.head.number + 1, left[0].number);
    let before = world.store().audit_checkpoints(&own, 0, 100).await.unwrap();
    assert_eq!(before[0].kind, CheckpointKind::Cut, "those below it are gone");

    // What is left is as safe as it was.
    act(&running, "e").await.unwrap();
    running.close().await.unwrap();
    world.sql(&format!("delete from audit where number = {}", left[0].number)).await;
    let faults = world.faults().await;
    assert!(
        faults.iter().any(|fault| fault.contains("nobody has signed that they were too old")),
        "{faults:?}"
    );
}

async fn a_run_that_was_killed_goes_when_all_of_it_is_too_old(world: World) {
    let killed = world.trail(SELDOM);
    for target in ["a", "b"] {
        act(&killed, target).await.unwrap();
    }
    let chain = killed.chain().await;
    drop(killed);
    world.run(1, SELDOM).await;
    let tomorrow = Utc::now() + TimeDelta::days(1);
    // While it could be running it is left alone.
    world.sweep(tomorrow, &chain).await;
    assert_eq!(world.entries(&chain).await.len(), 1);
    assert!(world.report().await.holds());
    world.sweep(tomorrow, "").await;
    let report = world.report().await;
    assert!(report.holds(), "{:?}", report.findings);
    assert_eq!((report.entries, report.chains), (0, 2));
    assert_eq!(world.sweep(tomorrow, "").await.rows, 0);
}

async fn what_was_changed_is_not_swept(world: World) {
    let chain = world.run(4, SELDOM).await;
    world.sql("update audit set actor = 'nobody' where number = 3").await;
    let swept = world.sweep(Utc::now() + TimeDelta::days(1), "").await;
    assert_eq!((swept.rows, swept.broken), (0, 1));
    assert_eq!(world.entries(&chain).await.len(), 6);
    assert!(world.faults().await[0].contains("entry 3"));
}

async fn keys_that_were_sealed_anew_outlive_their_seal_key(mut world: World) {
    world.run(1, SELDOM).await;
    let kid = world.store().audit_keys().await.unwrap()[0].kid.clone();
    for keys in [&[("k2", 2), ("k1", 1)][..], &[("k2", 2)]] {
        world.ring = ring(keys);
        AuditKeys::new(world.f.a.clone(), world.ring.clone()).tend().await.unwrap();
        world.run(1, SELDOM).await;
        assert_eq!(world.faults().await, Vec::<String>::new(), "{keys:?}");
    }
    let kept = world.store().audit_keys().await.unwrap();
    assert_eq!(kept.iter().map(|key| key.kid.as_str()).collect::<Vec<_>>(), [kid.as_str()]);
    assert!(kept[0].private.starts_with("k2."));

    // Where the seal key is lost, whoever knows the key can say so.
    let stranger = ring(&[("k3", 3)]);
    let believed = async |ring, named: &[String]| {
        let by = Verify { trust: Trust::of(&kept, ring, named), ..Verify::default() };
        world.report_by(by).await.holds()
    };
    assert!(!believed(Some(&*stranger), &[]).await);
    assert!(believed(Some(&*stranger), std::slice::from_ref(&kid)).await);
    assert!(believed(None, &[kid]).await);
    assert!(!believed(None, &["other".to_owned()]).await);
    assert!(believed(None, &[]).await && Trust::of(&kept, None, &[]).is_on_its_word());
}
