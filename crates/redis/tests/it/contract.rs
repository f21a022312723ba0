//! What every adapter of a port has to keep, as functions over two instances that share state.

mod bus;
mod claims;
mod events;
mod leases;
mod limiter;
mod revocations;
mod sessions;

use crate::fleet::Fleet;

/// A test for each contract over memory and over one server; over a cluster and over Sentinel, which take longer to
/// start, one test for all of them.
macro_rules! contracts {
    ($($port:ident: $($contract:ident),+;)+) => {
        mod memory {
            $(mod $port {
                $(#[tokio::test]
                async fn $contract() {
                    super::super::$port::$contract(&crate::fleet::Fleet::memory().await).await;
                })+
            })+
        }

        mod single {
            $(mod $port {
                $(#[tokio::test]
                async fn $contract() {
                    super::super::$port::$contract(&crate::fleet::Fleet::single().await).await;
                })+
            })+
        }

        async fn all(fleet: &Fleet) {
            $($({
                eprintln!("{}::{}", stringify!($port), stringify!($contract));
                $port::$contract(fleet).await;
            })+)+
        }
    };
}

contracts! {
    sessions:
        a_field_that_is_set_keeps_its_value,
        of_many_that_set_a_field_at_once_one_wins,
        only_who_knows_the_value_replaces_it,
        only_who_knows_the_value_removes_it,
        all_fields_end_together,
        a_use_says_how_long_it_would_have_lasted,
        who_takes_the_fields_has_all_of_them,
        values_are_any_bytes;
    events:
        events_are_replayed_after_a_point_by_any_instance,
        an_unknown_stream_has_no_page,
        the_end_of_a_stream_is_told,
        a_gap_is_never_hidden,
        many_and_large_events_come_back_whole;
    revocations:
        a_revocation_is_known_here_at_once_and_elsewhere_soon,
        an_instance_that_comes_later_knows_of_it,
        followers_hear_of_each_once,
        what_has_expired_is_forgotten;
    bus:
        an_instance_lives_from_its_announcement_until_it_leaves,
        a_message_reaches_the_inbox_of_its_instance,
        ten_thousand_messages_come_in_order,
        what_is_sent_to_nobody_is_told,
        what_was_offered_and_received_is_not_taken_back,
        what_was_taken_back_never_comes,
        a_topic_is_heard_by_all_that_are_subscribed,
        who_is_too_slow_is_told_that_something_is_missing,
        a_dropped_subscription_hears_nothing_and_disturbs_nobody;
    leases:
        a_lease_has_one_owner_until_it_is_given_back,
        of_many_takers_one_wins,
        a_lease_ends_and_the_next_has_a_higher_token,
        a_lease_is_taken_over_only_as_it_was_seen,
        who_lost_a_lease_can_neither_renew_nor_release_it;
    claims:
        a_name_is_claimed_once,
        of_many_claims_one_wins,
        a_claim_ends;
    limiter:
        a_burst_is_allowed_and_then_nothing,
        what_was_refused_is_allowed_after_the_time_it_was_told,
        keys_do_not_share_a_quota,
        a_limit_holds_over_all_instances,
        a_group_is_allowed_if_all_of_it_is,
        groups_after_the_first_are_allowed_by_themselves,
        a_group_and_a_key_alone_count_the_same;
}

#[tokio::test]
async fn a_cluster_keeps_every_contract() {
    all(&Fleet::cluster().await).await;
}

#[tokio::test]
async fn a_master_with_sentinel_keeps_every_contract() {
    all(&Fleet::sentinel().await).await;
}
