//! Every script. Each runs as one step; its keys have one hash tag.
//!
//! Numbers in Lua are floating point: exact up to 2^53, and turned into text by `string.format`, since `tostring` would
//! write large ones with an exponent.

use std::sync::LazyLock;

use crate::request::Lua;

macro_rules! scripts {
    ($($(#[doc = $doc:literal])+ $name:ident = $source:literal;)+) => {
        $($(#[doc = $doc])+ pub(crate) static $name: LazyLock<Lua> = LazyLock::new(|| Lua::new($source));)+
    };
}

scripts! {
    /// Session, field, value, TTL in ms: the value that the field has now.
    PUT_IF_ABSENT = r"
        local value = redis.call('HGET', KEYS[1], ARGV[1])
        if not value then
            value = ARGV[2]
            redis.call('HSET', KEYS[1], ARGV[1], value)
        end
        redis.call('PEXPIRE', KEYS[1], ARGV[3])
        return value
    ";

    /// Session, field, old value, new value, TTL in ms: whether it had the old value.
    REPLACE = r"
        if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
        redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
        redis.call('PEXPIRE', KEYS[1], ARGV[4])
        return 1
    ";

    /// Session, field, old value: whether it had that value.
    REMOVE = r"
        if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
        redis.call('HDEL', KEYS[1], ARGV[1])
        return 1
    ";

    /// Session, TTL in ms: how long it would have lasted, in ms; less than 0 if there is none.
    TOUCH = r"
        local left = redis.call('PTTL', KEYS[1])
        if left ~= -2 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
        return left
    ";

    /// Session: its fields and values.
    TAKE = r"
        local fields = redis.call('HGETALL', KEYS[1])
        redis.call('DEL', KEYS[1])
        return fields
    ";

    /// Stream; TTL in ms, most events, most bytes, 1 if finished, the number before the first event; then number and text
    /// of each event.
    ///
    /// An entry has the id `number-1` and says the number before it (`p`) and how many bytes the stream has had with it
    /// (`c`), so that the first entry tells what was dropped and how much is there. One without text (`e`) stands for an
    /// event that is too large, and for all before it. The end (`z`) is an entry with the id `number-2`.
    APPEND = r"
        local key, ttl, most, bytes = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
        local last, count, over = ARGV[5], 0, false
        local newest = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
        if newest then
            last = string.match(newest[1], '^%d+')
            count = tonumber(newest[2][4])
            over = newest[2][5] == 'z'
        end
        if over then return 0 end
        for i = 6, #ARGV, 2 do
            local number, text = ARGV[i], ARGV[i + 1]
            -- One that is there already came with an answer that was lost.
            if not newest or tonumber(number) > tonumber(last) then
                count = count + #text
                local id, size = number .. '-1', string.format('%.0f', count)
                if #text > bytes then
                    redis.call('XADD', key, id, 'p', last, 'c', size)
                    redis.call('XTRIM', key, 'MAXLEN', '=', 1)
                else
                    redis.call('XADD', key, id, 'p', last, 'c', size, 'e', text)
                end
                last, newest = number, true
            end
        end
        if ARGV[4] == '1' then
            redis.call('XADD', key, last .. '-2', 'p', last, 'c', string.format('%.0f', count), 'z', '1')
        end
        redis.call('XTRIM', key, 'MAXLEN', '=', most)
        while true do
            local oldest = redis.call('XRANGE', key, '-', '+', 'COUNT', 2)
            if #oldest < 2 then break end
            local first = tonumber(oldest[1][2][4]) - #(oldest[1][2][6] or '')
            if count - first <= bytes then break end
            redis.call('XDEL', key, oldest[1][1])
        end
        redis.call('PEXPIRE', key, ttl)
        return 1
    ";

    /// Stream, number: nothing if there is no stream; else the number up to which events were dropped, 1 if it is
    /// finished, and the entries after the number.
    READ_AFTER = r"
        local key = KEYS[1]
        local oldest = redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
        if not oldest then return false end
        local dropped = oldest[2][2]
        if #oldest[2] == 4 then dropped = string.match(oldest[1], '^%d+') end
        local newest = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
        local answer = { dropped, newest[2][5] == 'z' and '1' or '0' }
        if tonumber(dropped) > tonumber(ARGV[1]) then return answer end
        for _, entry in ipairs(redis.call('XRANGE', key, '(' .. ARGV[1] .. '-2', '+')) do
            if entry[2][5] == 'e' then
                answer[#answer + 1] = string.match(entry[1], '^%d+')
                answer[#answer + 1] = entry[2][6]
            end
        end
        return answer
    ";

    /// Presence, inbox; TTL of each in ms: since when the instance is known to live, in µs by the server's clock. What is
    /// in the inbox of one that was not has lost its senders.
    ANNOUNCE = r"
        local since = redis.call('GET', KEYS[1])
        if since then
            redis.call('PEXPIRE', KEYS[1], ARGV[1])
            redis.call('PEXPIRE', KEYS[2], ARGV[2])
            return since
        end
        local time = redis.call('TIME')
        since = string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
        redis.call('SET', KEYS[1], since, 'PX', ARGV[1])
        redis.call('DEL', KEYS[2])
        return since
    ";

    /// Presence, inbox; most messages, for how many ms longer than the presence the inbox lasts, name of the field,
    /// message: its id, or `gone` if the instance does not live, or `full` if its inbox is.
    SEND = r"
        local left = redis.call('PTTL', KEYS[1])
        if left == -2 then return 'gone' end
        if redis.call('XLEN', KEYS[2]) >= tonumber(ARGV[1]) then return 'full' end
        local id = redis.call('XADD', KEYS[2], '*', ARGV[3], ARGV[4])
        redis.call('PEXPIRE', KEYS[2], math.max(left, 1) + tonumber(ARGV[2]))
        return id
    ";

    /// Presence, inbox; ids of messages: deletes them, and says since when the instance is known to live. If it is not,
    /// what was offered to it is its sender's.
    TAKE_OFFERS = r"
        redis.call('XDEL', KEYS[2], unpack(ARGV))
        return redis.call('GET', KEYS[1])
    ";

    /// Presence, inbox; id of a message: whether it was there still, and the instance is gone. One that lives may have
    /// read it.
    WITHDRAW = r"
        if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
        return redis.call('XDEL', KEYS[2], ARGV[1])
    ";

    /// Instances; instance, TTL in ms: enters it, and forgets those whose time is over.
    ENTER_INSTANCE = r"
        local time = redis.call('TIME')
        local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
        redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
        redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
        local left = redis.call('PTTL', KEYS[1])
        if left < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
        return 1
    ";

    /// Keys; the type that each should have: deletes those that have another one, and says how many.
    DELETE_MISFITS = r"
        local count = 0
        for i, key in ipairs(KEYS) do
            local kind = redis.call('TYPE', key).ok
            if kind ~= 'none' and kind ~= ARGV[i] then count = count + redis.call('DEL', key) end
        end
        return count
    ";

    /// Instances: those whose time is not over.
    LIVE_INSTANCES = r"
        local time = redis.call('TIME')
        local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
        return redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', now), '+inf')
    ";

    /// Lease, its last token; instance, TTL in ms, TTL of the token in ms: who has it now. A token that was forgotten
    /// begins at the server's time in ms, so that it is higher than any before.
    ACQUIRE = r"
        local held = redis.call('GET', KEYS[1])
        if held then
            if string.match(held, '^%S+') == ARGV[1] then
                redis.call('PEXPIRE', KEYS[1], ARGV[2])
                redis.call('PEXPIRE', KEYS[2], ARGV[3])
            end
            return held
        end
        local time = redis.call('TIME')
        local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
        redis.call('SET', KEYS[2], string.format('%.0f', now), 'NX')
        held = ARGV[1] .. ' ' .. string.format('%.0f', redis.call('INCR', KEYS[2]))
        redis.call('PEXPIRE', KEYS[2], ARGV[3])
        redis.call('SET', KEYS[1], held, 'PX', ARGV[2])
        return held
    ";

    /// Lease, its last token; instance, TTL in ms, TTL of the token in ms, the lease as it was seen: who has it now.
    TAKE_OVER = r"
        local held = redis.call('GET', KEYS[1])
        if held and held ~= ARGV[4] then return held end
        local time = redis.call('TIME')
        local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
        redis.call('SET', KEYS[2], string.format('%.0f', now), 'NX')
        held = ARGV[1] .. ' ' .. string.format('%.0f', redis.call('INCR', KEYS[2]))
        redis.call('PEXPIRE', KEYS[2], ARGV[3])
        redis.call('SET', KEYS[1], held, 'PX', ARGV[2])
        return held
    ";

    /// Lease, its last token; lease as it was given, TTL in ms, TTL of the token in ms: whether it is still this one.
    RENEW = r"
        if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
        redis.call('PEXPIRE', KEYS[2], ARGV[3])
        return 1
    ";

    /// Lease; lease as it was given: gives it back.
    RELEASE = r"
        if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
        return 1
    ";

    /// Key; interval and tolerance in µs: 1 and how many more, or 0 and after how many µs.
    LIMIT = r"
        local time = redis.call('TIME')
        local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
        local interval, tolerance = tonumber(ARGV[1]), tonumber(ARGV[2])
        local next = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
        local ahead = next - now
        if ahead > tolerance then return { 0, ahead - tolerance } end
        local ttl = math.ceil((ahead + interval) / 1000)
        redis.call('SET', KEYS[1], string.format('%.0f', next + interval), 'PX', string.format('%.0f', ttl))
        return { 1, math.floor((tolerance - ahead) / interval) }
    ";

    /// Keys of groups; how many groups, how many keys each has, then interval and tolerance of each key in µs. For each
    /// group, up to the first if that is refused: the place of the key that refuses it, or 0, and for how long in µs.
    LIMIT_GROUPS = r"
        local time = redis.call('TIME')
        local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
        local groups = tonumber(ARGV[1])
        local said, first = {}, 0
        for group = 1, groups do
            local size = tonumber(ARGV[1 + group])
            local nexts, place, wait = {}, 0, 0
            for i = 1, size do
                local at = groups + 2 * (first + i)
                local next = math.max(tonumber(redis.call('GET', KEYS[first + i]) or now), now)
                local over = next - now - tonumber(ARGV[at + 1])
                nexts[i] = next + tonumber(ARGV[at])
                if over > wait then place, wait = i, over end
            end
            said[group] = { place, wait }
            if place == 0 then
                for i = 1, size do
                    local ttl = math.ceil((nexts[i] - now) / 1000)
                    redis.call('SET', KEYS[first + i], string.format('%.0f', nexts[i]), 'PX', string.format('%.0f', ttl))
                end
            elseif group == 1 then
                break
            end
            first = first + size
        end
        return said
    ";

    /// Revocations; session, how long in ms, most entries: enters it, and takes expired ones off the front. An entry says
    /// which one is before it (`p`), so that whoever follows sees whether one is missing.
    REVOKE = r"
        local time = redis.call('TIME')
        local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
        local ends = string.format('%.0f', now + tonumber(ARGV[2]))
        local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
        local before = newest and newest[1] or '0-0'
        redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[3], '*', 'k', ARGV[1], 'u', ends, 'p', before)
        for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 16)) do
            local ends = tonumber(entry[2][4])
            if ends and ends > now then
                redis.call('XTRIM', KEYS[1], 'MINID', entry[1])
                break
            end
        end
        if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
        return 1
    ";
}
