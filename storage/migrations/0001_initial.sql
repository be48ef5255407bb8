-- Times are microseconds since 1970 in UTC, 0 where there is none; truth values
-- are 0 and 1. Every table is written by queries in the file of the same name.

CREATE TABLE inbox (
	id          INTEGER PRIMARY KEY,
	channel     TEXT     NOT NULL,
	message_id  TEXT     NOT NULL,
	digest      TEXT,               -- NULL when the platform signs nothing
	room        TEXT     NOT NULL,
	thread      TEXT     NOT NULL,
	person      TEXT     NOT NULL,
	state       TEXT     NOT NULL,
	reason      TEXT     NOT NULL,
	run         TEXT     NOT NULL,
	received_at BIGINT   NOT NULL,
	facts       TEXT     NOT NULL,  -- JSON: what is known about the message
	content     TEXT     NOT NULL   -- JSON: what people wrote; '' once the row is ignored
);
CREATE UNIQUE INDEX inbox_message ON inbox (message_id, channel);
CREATE UNIQUE INDEX inbox_digest ON inbox (digest, channel) WHERE digest IS NOT NULL;
CREATE INDEX inbox_open ON inbox (channel, room, thread, id) WHERE state IN ('received', 'waiting');
CREATE INDEX inbox_run ON inbox (run) WHERE run <> '';

CREATE TABLE threads (
	channel TEXT NOT NULL,
	room    TEXT NOT NULL,
	thread  TEXT NOT NULL,
	session TEXT NOT NULL,          -- '' until the first run creates one
	project TEXT NOT NULL,
	PRIMARY KEY (channel, room, thread)
);

CREATE TABLE sessions (
	id           TEXT   PRIMARY KEY,
	channel      TEXT   NOT NULL,   -- the thread that created it
	room         TEXT   NOT NULL,
	thread       TEXT   NOT NULL,
	project      TEXT   NOT NULL,
	title        TEXT   NOT NULL,
	last_seq     BIGINT NOT NULL,
	context_from BIGINT NOT NULL,   -- where the prompt begins
	created_at   BIGINT NOT NULL,
	updated_at   BIGINT NOT NULL,
	calls        BIGINT NOT NULL,   -- sums of table usage
	input        BIGINT NOT NULL,
	cached_input BIGINT NOT NULL,
	output       BIGINT NOT NULL,
	last_input   BIGINT NOT NULL
);
CREATE INDEX sessions_updated ON sessions (updated_at, id);
CREATE INDEX sessions_room ON sessions (channel, room, updated_at, id);

CREATE TABLE events (
	session TEXT   NOT NULL REFERENCES sessions (id),
	seq     BIGINT NOT NULL,
	run     TEXT   NOT NULL,
	at      BIGINT NOT NULL,
	kind    TEXT   NOT NULL,
	data    TEXT   NOT NULL,        -- JSON
	PRIMARY KEY (session, seq)
);

CREATE TABLE usage (
	session      TEXT   NOT NULL,
	seq          BIGINT NOT NULL,   -- of the assistant event
	run          TEXT   NOT NULL,
	at           BIGINT NOT NULL,
	model        TEXT   NOT NULL,
	input        BIGINT NOT NULL,   -- wasted tokens included
	cached_input BIGINT NOT NULL,
	output       BIGINT NOT NULL,
	PRIMARY KEY (session, seq)
);
CREATE INDEX usage_at ON usage (at);

CREATE TABLE runs (
	id          TEXT   PRIMARY KEY,
	session     TEXT   NOT NULL,
	inbox       BIGINT NOT NULL,
	channel     TEXT   NOT NULL,
	room        TEXT   NOT NULL,
	thread      TEXT   NOT NULL,
	reply_to    TEXT   NOT NULL,
	person      TEXT   NOT NULL,
	role        TEXT   NOT NULL,
	project     TEXT   NOT NULL,
	stop        TEXT   NOT NULL,
	attempts    BIGINT NOT NULL,
	started_at  BIGINT NOT NULL,
	ended_at    BIGINT NOT NULL,    -- 0 while it is open
	reason      TEXT   NOT NULL,
	owner       TEXT   NOT NULL,    -- the process that works on it
	epoch       BIGINT NOT NULL,    -- counts the owners
	lease_until BIGINT NOT NULL     -- 0: as long as the owner lives
);
CREATE UNIQUE INDEX runs_open_thread ON runs (channel, room, thread) WHERE ended_at = 0;
CREATE UNIQUE INDEX runs_open_session ON runs (session) WHERE ended_at = 0;

CREATE TABLE approvals (
	id         INTEGER PRIMARY KEY,
	code       TEXT   NOT NULL,
	run        TEXT   NOT NULL,
	call_id    TEXT   NOT NULL,
	digest     TEXT   NOT NULL,
	channel    TEXT   NOT NULL,
	room       TEXT   NOT NULL,
	thread     TEXT   NOT NULL,
	tool       TEXT   NOT NULL,
	shown      TEXT   NOT NULL,
	requester  TEXT   NOT NULL,
	state      TEXT   NOT NULL,
	decided_by TEXT   NOT NULL,
	note       TEXT   NOT NULL,
	created_at BIGINT NOT NULL,
	expires_at BIGINT NOT NULL,
	decided_at BIGINT NOT NULL,
	UNIQUE (run, call_id)
);
CREATE UNIQUE INDEX approvals_open_code ON approvals (code) WHERE state = 'open';
CREATE INDEX approvals_open ON approvals (channel, room, id) WHERE state = 'open';
CREATE INDEX approvals_code ON approvals (channel, room, code, id);

CREATE TABLE outbox (
	id         INTEGER PRIMARY KEY,
	kind       TEXT     NOT NULL,
	ordered    SMALLINT NOT NULL,
	run        TEXT     NOT NULL,
	inbox      BIGINT   NOT NULL,
	part       BIGINT   NOT NULL,
	channel    TEXT     NOT NULL,
	room       TEXT     NOT NULL,
	thread     TEXT     NOT NULL,
	reply_to   TEXT     NOT NULL,
	text       TEXT     NOT NULL,
	key        TEXT     NOT NULL UNIQUE,
	ord        BIGINT   NOT NULL,   -- place in the room, with gaps for parts that are split again
	state      TEXT     NOT NULL,
	attempts   BIGINT   NOT NULL,
	next_at    BIGINT   NOT NULL,
	error      TEXT     NOT NULL,
	remote_id  TEXT     NOT NULL,
	created_at BIGINT   NOT NULL,
	sent_at    BIGINT   NOT NULL,
	owner      TEXT     NOT NULL,   -- the process that put it into sending
	retried    SMALLINT NOT NULL    -- an operator sent it again, out of order
);
CREATE UNIQUE INDEX outbox_place ON outbox (channel, room, ord);
CREATE INDEX outbox_queue ON outbox (channel, room, ordered, ord) WHERE state IN ('pending', 'sending', 'ambiguous');
CREATE INDEX outbox_unsent ON outbox (state, id) WHERE state <> 'sent';
CREATE INDEX outbox_run ON outbox (run) WHERE run <> '';
CREATE INDEX outbox_inbox ON outbox (inbox) WHERE inbox <> 0;

CREATE TABLE blocks (
	channel  TEXT   NOT NULL,
	room     TEXT   NOT NULL,       -- '': the whole channel
	reason   TEXT   NOT NULL,
	since    BIGINT NOT NULL,
	until_at BIGINT NOT NULL,
	PRIMARY KEY (channel, room)
);

CREATE TABLE audit (
	id      INTEGER PRIMARY KEY,
	at      BIGINT NOT NULL,
	class   TEXT   NOT NULL,
	channel TEXT   NOT NULL,
	room    TEXT   NOT NULL,
	person  TEXT   NOT NULL,
	detail  TEXT   NOT NULL
);
