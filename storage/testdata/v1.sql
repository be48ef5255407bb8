-- A database of version 1, as it was when that was released. Never edited.
BEGIN TRANSACTION;
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
INSERT INTO "approvals" VALUES(1,'K7Q','run_1','c1','','cloud','lobby','7','shell','ls','cloud:ann','expired','','',1700000000000000,1700003600000000,1700000060000000);
CREATE TABLE audit (
	id      INTEGER PRIMARY KEY,
	at      BIGINT NOT NULL,
	class   TEXT   NOT NULL,
	channel TEXT   NOT NULL,
	room    TEXT   NOT NULL,
	person  TEXT   NOT NULL,
	detail  TEXT   NOT NULL
);
INSERT INTO "audit" VALUES(1,1700000000000000,'access_denied','','','cloud:eve','');
CREATE TABLE blocks (
	channel  TEXT   NOT NULL,
	room     TEXT   NOT NULL,       -- '': the whole channel
	reason   TEXT   NOT NULL,
	since    BIGINT NOT NULL,
	until_at BIGINT NOT NULL,
	PRIMARY KEY (channel, room)
);
INSERT INTO "blocks" VALUES('cloud','attic','403',1700000000000000,0);
CREATE TABLE events (
	session TEXT   NOT NULL REFERENCES sessions (id),
	seq     BIGINT NOT NULL,
	run     TEXT   NOT NULL,
	at      BIGINT NOT NULL,
	kind    TEXT   NOT NULL,
	data    TEXT   NOT NULL,        -- JSON
	PRIMARY KEY (session, seq)
);
INSERT INTO "events" VALUES('sess_1',1,'run_1',1700000000000000,'user','{"text":"please"}');
INSERT INTO "events" VALUES('sess_1',2,'run_1',1700000002000000,'assistant','{"model":"m","usage":{"input":100,"output":7},"wasted":{"input":5,"output":0},"calls":[{"id":"c1","tool":"shell","raw_args":"{\"command\": \"ls\"}"},{"id":"c2","tool":"shell","raw_args":"{\"cut"}]}');
INSERT INTO "events" VALUES('sess_1',3,'run_1',1700000003000000,'tool_start','{"call_id":"c1","tool":"shell"}');
INSERT INTO "events" VALUES('sess_1',4,'run_1',1700000004000000,'tool_result','{"call_id":"c1","tool":"shell","text":"a.txt"}');
INSERT INTO "events" VALUES('sess_1',5,'run_1',1700000005000000,'tool_result','{"call_id":"c2","tool":"shell","text":"no JSON","failed":true}');
INSERT INTO "events" VALUES('sess_1',6,'run_1',1700000006000000,'assistant','{"text":"done","model":"m","usage":{"input":120,"output":3}}');
INSERT INTO "events" VALUES('sess_1',7,'run_1',1700000007000000,'end','{"reason":"answered"}');
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
INSERT INTO "inbox" VALUES(1,'cloud','m1','digest','lobby','7','ann','done','','run_1',1700000000000000,'{"kind":"text"}','{"text":"text of m1","quote":{"id":"m0","text":"earlier"},"attachments":[{"name":"a.txt"}]}');
INSERT INTO "inbox" VALUES(2,'cloud','m2',NULL,'lobby','','ann','ignored','not mentioned','',0,'{"kind":"text"}','');
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
INSERT INTO "outbox" VALUES(1,'ack',0,'',1,0,'cloud','lobby','7','m1','👀','k0',65536,'dropped',0,1796095295438204,'','',1796095295438204,0,'',0);
INSERT INTO "outbox" VALUES(2,'answer',1,'run_1',1,1,'cloud','lobby','7','m1','one','k1',131072,'sent',1,1700000060000000,'','r1',1700000060000000,1700003600000000,'',0);
INSERT INTO "outbox" VALUES(3,'answer',1,'run_1',1,2,'cloud','lobby','7','m1','two','k2',196608,'sent',1,1700000060000000,'','r2',1700000060000000,1700007200000000,'',0);
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
INSERT INTO "runs" VALUES('run_1','sess_1',1,'cloud','lobby','7','m1','cloud:ann','member','website','',1,1700000000000000,1700000060000000,'answered','7RMD2BGA3UOA4XQL4LA2Y37QMK',1,0);
CREATE TABLE schema_version (
			version    INTEGER NOT NULL PRIMARY KEY,
			applied_at BIGINT  NOT NULL
		);
INSERT INTO "schema_version" VALUES(1,1796095295420206);
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
INSERT INTO "sessions" VALUES('sess_1','cloud','lobby','7','website','please',7,1,1700000000000000,1700000007000000,2,225,0,10,120);
CREATE TABLE threads (
	channel TEXT NOT NULL,
	room    TEXT NOT NULL,
	thread  TEXT NOT NULL,
	session TEXT NOT NULL,          -- '' until the first run creates one
	project TEXT NOT NULL,
	PRIMARY KEY (channel, room, thread)
);
INSERT INTO "threads" VALUES('cloud','lobby','7','sess_1','website');
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
INSERT INTO "usage" VALUES('sess_1',2,'run_1',1700000002000000,'m',105,0,7);
INSERT INTO "usage" VALUES('sess_1',6,'run_1',1700000006000000,'m',120,0,3);
CREATE UNIQUE INDEX inbox_message ON inbox (message_id, channel);
CREATE UNIQUE INDEX inbox_digest ON inbox (digest, channel) WHERE digest IS NOT NULL;
CREATE INDEX inbox_open ON inbox (channel, room, thread, id) WHERE state IN ('received', 'waiting');
CREATE INDEX inbox_run ON inbox (run) WHERE run <> '';
CREATE INDEX sessions_updated ON sessions (updated_at, id);
CREATE INDEX sessions_room ON sessions (channel, room, updated_at, id);
CREATE INDEX usage_at ON usage (at);
CREATE UNIQUE INDEX runs_open_thread ON runs (channel, room, thread) WHERE ended_at = 0;
CREATE UNIQUE INDEX runs_open_session ON runs (session) WHERE ended_at = 0;
CREATE UNIQUE INDEX approvals_open_code ON approvals (code) WHERE state = 'open';
CREATE INDEX approvals_open ON approvals (channel, room, id) WHERE state = 'open';
CREATE INDEX approvals_code ON approvals (channel, room, code, id);
CREATE UNIQUE INDEX outbox_place ON outbox (channel, room, ord);
CREATE INDEX outbox_queue ON outbox (channel, room, ordered, ord) WHERE state IN ('pending', 'sending', 'ambiguous');
CREATE INDEX outbox_unsent ON outbox (state, id) WHERE state <> 'sent';
CREATE INDEX outbox_run ON outbox (run) WHERE run <> '';
CREATE INDEX outbox_inbox ON outbox (inbox) WHERE inbox <> 0;
COMMIT;
