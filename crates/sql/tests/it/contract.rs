//! What records have to keep, whatever the database is.

mod audit;
mod clients;
mod grants;
mod keys;
mod refresh;
mod sweep;
mod tokens;
mod users;
mod vault;

/// A test for each contract over each database.
macro_rules! contracts {
    ($($of:ident: $($contract:ident),+;)+) => {
        contracts!(@over memory $($of: $($contract),+;)+);
        contracts!(@over file $($of: $($contract),+;)+);
        contracts!(@over postgres $($of: $($contract),+;)+);
    };
    (@over $database:ident $($of:ident: $($contract:ident),+;)+) => {
        mod $database {
            $(mod $of {
                $(#[tokio::test]
                async fn $contract() {
                    super::super::$of::$contract(&crate::fixture::Fixture::$database().await).await;
                })+
            })+
        }
    };
}

contracts! {
    users:
        whoever_comes_again_is_the_same_user,
        many_who_come_at_once_are_one_user,
        a_user_is_disabled_once_and_enabled_once,
        each_who_raises_a_version_is_told_another_one,
        users_are_listed_newest_first;
    tokens:
        a_token_comes_back_as_it_was_kept,
        a_token_is_found_by_its_secret_with_its_owner,
        two_tokens_never_have_one_secret,
        a_token_is_revoked_once,
        a_token_is_rotated_once,
        the_last_use_never_goes_back,
        lists_have_what_was_asked_for,
        pages_have_everything_once,
        an_active_token_of_a_kind_is_noticed;
    clients:
        equal_metadata_without_a_secret_is_one_client,
        many_who_register_at_once_get_one_client,
        a_client_with_a_secret_is_its_own,
        a_client_is_used_disabled_and_removed,
        clients_that_were_never_used_are_forgotten;
    grants:
        a_code_is_redeemed_once,
        of_many_who_redeem_at_once_one_gets_the_grant,
        a_burnt_code_stays_burnt,
        a_grant_is_revoked_once,
        grants_are_listed_by_user_and_client,
        a_grant_needs_its_user;
    refresh:
        a_live_token_is_rotated,
        a_token_that_comes_back_at_once_gets_the_same_successor,
        an_answer_that_was_lost_is_given_anew,
        an_old_token_that_wins_is_found_out_when_its_first_successor_comes,
        a_used_token_that_comes_back_late_ends_the_grant,
        a_successor_that_was_seen_is_in_use,
        what_is_no_longer_good_is_dead,
        another_client_changes_nothing,
        of_many_who_present_one_token_one_rotates_it,
        of_many_who_lost_an_answer_one_rotates_anew,
        chains_go_as_the_model_says;
    keys:
        signing_keys_come_back_the_oldest_first,
        revocations_last_as_long_as_the_longer,
        revocations_are_found_by_when_they_were_entered,
        many_add_the_same_revocations;
    audit:
        entries_come_in_the_order_of_time,
        all_entries_are_appended_or_none,
        a_cursor_outlives_its_entry,
        entries_are_found_by_what_they_are,
        chains_are_walked_and_cut,
        keys_of_the_trail_are_kept_and_sealed_anew;
    sweep:
        what_matters_to_nobody_is_forgotten,
        more_than_a_batch_is_forgotten;
    vault:
        a_server_is_pinned_once_and_replaced_by_who_knows_it,
        many_who_register_get_one_client,
        a_connection_comes_back_as_it_was_kept_and_counts_on,
        a_connection_is_changed_by_who_knows_its_version,
        a_turn_is_one_instances_for_a_while,
        what_other_keys_have_sealed_is_found;
}
