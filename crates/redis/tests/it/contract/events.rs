use bytes::Bytes;
use drawbridge_core::event_log::Page;

use crate::fleet::{Fleet, stream};

fn texts(numbers: impl IntoIterator<Item = u64>) -> Vec<(u64, Bytes)> {
    numbers.into_iter().map(|n| (n, Bytes::from(format!("event {n}")))).collect()
}

pub(crate) async fn events_are_replayed_after_a_point_by_any_instance(fleet: &Fleet) {
    let (one, two) = (&fleet.one.events, &fleet.two.events);
    let (key, other) = (stream(), stream());
    one.append(key, &texts([1, 2]), false).await.unwrap();
    one.append(other, &texts([1]), false).await.unwrap();
    // Numbers rise, and need not be one after another.
    one.append(key, &texts([5, 1 << 40]), false).await.unwrap();
    let after = async |seq| two.read_after(key, seq).await.unwrap().unwrap();
    assert_eq!(after(0).await, Page { events: texts([1, 2, 5, 1 << 40]), finished: false });
    assert_eq!(after(1).await.events, texts([2, 5, 1 << 40]));
    assert_eq!(after(3).await.events, texts([5, 1 << 40]));
    assert_eq!(after(1 << 40).await, Page { events: vec![], finished: false });
    assert_eq!(after((1 << 40) + 1).await.events, []);
}

pub(crate) async fn an_unknown_stream_has_no_page(fleet: &Fleet) {
    assert_eq!(fleet.one.events.read_after(stream(), 0).await.unwrap(), None);
}

pub(crate) async fn the_end_of_a_stream_is_told(fleet: &Fleet) {
    let (one, two) = (&fleet.one.events, &fleet.two.events);
    let (at_once, later) = (stream(), stream());
    one.append(at_once, &texts([1, 2]), true).await.unwrap();
    one.append(later, &texts([1, 2]), false).await.unwrap();
    one.append(later, &[], true).await.unwrap();
    for key in [at_once, later] {
        for (seq, expected) in [(0, texts([1, 2])), (1, texts([2])), (2, texts([]))] {
            let page = two.read_after(key, seq).await.unwrap();
            assert_eq!(page, Some(Page { events: expected, finished: true }), "after {seq}");
        }
    }
}

pub(crate) async fn a_gap_is_never_hidden(fleet: &Fleet) {
    let (one, key) = (&fleet.one.events, stream());
    one.append(key, &texts([5, 6]), false).await.unwrap();
    assert_eq!(one.read_after(key, 3).await.unwrap(), None, "number 4 was never there");
    assert_eq!(one.read_after(key, 4).await.unwrap().unwrap().events, texts([5, 6]));
}

pub(crate) async fn many_and_large_events_come_back_whole(fleet: &Fleet) {
    let key = stream();
    let large = |n: u64| (n, Bytes::from(vec![u8::try_from(n % 251).unwrap(); 10_000]));
    let events: Vec<(u64, Bytes)> = (1..=500).map(large).collect();
    fleet.one.events.append(key, &events, false).await.unwrap();
    let page = fleet.two.events.read_after(key, 0).await.unwrap().unwrap();
    assert!(page.events == events);
    let page = fleet.two.events.read_after(key, 499).await.unwrap().unwrap();
    assert!(page.events == [large(500)]);
}
