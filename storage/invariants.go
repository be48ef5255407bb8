package storage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"trill/engine/session"
	"trill/pipeline"
)

// rule is something that always holds; the query returns one readable sentence
// for each row for which it does not.
type rule struct {
	name  string
	query string
}

// maxFound bounds what is said about one rule; who reads on gets no wiser.
const maxFound = 100

// rules are checked at rest and under load alike.
func rules() []rule {
	return []rule{
		{"a session has at most one open run", `
			SELECT 'session ' || session || ' has ' || COUNT(*) || ' open runs'
			FROM runs WHERE ended_at = 0 GROUP BY session HAVING COUNT(*) > 1`},
		{"a transcript has no gap", `
			SELECT 'session ' || sessions.id || ' says it has ' || last_seq || ' events and has ' || COUNT(events.seq)
				|| ', up to ' || COALESCE(MAX(events.seq), 0)
			FROM sessions LEFT JOIN events ON events.session = sessions.id
			GROUP BY sessions.id, last_seq
			HAVING COUNT(events.seq) <> last_seq OR COALESCE(MAX(events.seq), 0) <> last_seq`},
		{"a message that is done has a run, a reply or a reason", `
			SELECT 'message ' || message_id || ' of ' || channel || ' is done without a run, a reply or a reason'
			FROM inbox
			WHERE state = 'done' AND reason = ''
				AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = inbox.run)
				AND NOT EXISTS (SELECT 1 FROM outbox WHERE outbox.inbox = inbox.id AND outbox.inbox <> 0)`},
		{"a message that was ignored or given up has a reason", `
			SELECT 'message ' || message_id || ' of ' || channel || ' is ' || state || ' without a reason'
			FROM inbox WHERE state IN ('ignored', 'dead') AND reason = ''`},
		{"a message that was ignored has no text", `
			SELECT 'message ' || message_id || ' of ' || channel || ' is ignored and still has its text'
			FROM inbox WHERE state = 'ignored' AND content <> ''`},
		{"a run begins with a message that is done", `
			SELECT 'run ' || runs.id || ' was started by message ' || runs.inbox || ', which is not done'
			FROM runs LEFT JOIN inbox ON inbox.id = runs.inbox
			WHERE inbox.id IS NULL OR inbox.state <> 'done' OR inbox.run <> runs.id`},
		{"a run that is over has an end in its transcript", `
			SELECT 'run ' || id || ' is ' || reason || ' and its transcript has no end'
			FROM runs
			WHERE ended_at <> 0 AND NOT EXISTS (SELECT 1 FROM events
				WHERE events.session = runs.session AND events.run = runs.id AND events.kind = 'end')`},
		{"a run that answered has an answer to send", `
			SELECT 'run ' || id || ' is answered and nothing was to be sent'
			FROM runs
			WHERE reason = 'answered' AND NOT EXISTS (SELECT 1 FROM outbox
				WHERE outbox.run = runs.id AND outbox.run <> '' AND outbox.kind = 'answer')`},
		{"the parts of an answer are sent in order", `
			SELECT 'part ' || later.part || ' of run ' || later.run || ' was sent before part ' || earlier.part
			FROM outbox AS later JOIN outbox AS earlier ON earlier.run = later.run
			WHERE later.run <> '' AND earlier.run <> ''
				AND later.kind = 'answer' AND earlier.kind = 'answer'
				AND later.channel = earlier.channel AND later.room = earlier.room AND later.ord > earlier.ord
				AND later.state = 'sent' AND earlier.retried = 0
				AND (earlier.state IN ('pending', 'sending', 'ambiguous')
					OR earlier.state = 'sent' AND earlier.sent_at > later.sent_at)`},
		{"what was sent says when", `
			SELECT 'delivery ' || id || ' is sent and does not say when' FROM outbox WHERE state = 'sent' AND sent_at = 0`},
		{"a question that is open belongs to an open run", `
			SELECT 'approval ' || approvals.id || ' is open and its run ' || runs.id || ' is over'
			FROM approvals JOIN runs ON runs.id = approvals.run
			WHERE approvals.state = 'open' AND runs.ended_at <> 0`},
		{"the tokens of a session are those of its calls", `
			SELECT 'session ' || sessions.id || ' was billed ' || sessions.input || '+' || sessions.output
				|| ' tokens in ' || sessions.calls || ' calls; the calls say '
				|| COALESCE(SUM(usage.input), 0) || '+' || COALESCE(SUM(usage.output), 0) || ' in ' || COUNT(usage.seq)
			FROM sessions LEFT JOIN usage ON usage.session = sessions.id
			GROUP BY sessions.id, sessions.calls, sessions.input, sessions.output
			HAVING sessions.calls <> COUNT(usage.seq)
				OR sessions.input <> COALESCE(SUM(usage.input), 0) OR sessions.output <> COALESCE(SUM(usage.output), 0)`},
	}
}

// Invariants returns a sentence for everything in the database that should not
// be so, none when all is well, at most 100 a rule. It reads every row, all as of
// one moment.
func (db *DB) Invariants(ctx context.Context) (found []string, err error) {
	t, err := db.reads.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, explain(err)
	}
	defer func() { err = errors.Join(err, t.Rollback()) }()
	now := moment{t}
	for _, r := range rules() {
		ss, err := all(ctx, now, scanString, r.query+` LIMIT $1`, maxFound)
		if err != nil {
			return nil, fmt.Errorf("check that %s: %w", r.name, err)
		}
		found = append(found, ss...)
	}
	ss, err := checkTranscripts(ctx, now)
	if err != nil {
		return nil, fmt.Errorf("check transcripts: %w", err)
	}
	return append(found, ss...), nil
}

// moment is the database as it was when a reading transaction began.
type moment struct{ *sql.Tx }

func (m moment) prepared(ctx context.Context, query string) (*sql.Stmt, error) {
	return m.PrepareContext(ctx, query)
}

func scanString(s scanner) (v string, err error) { return v, s.Scan(&v) }

// checkTranscripts checks what only the events themselves can tell: every result
// answers a call, no call with effects was started twice, and every token that
// was billed is in an event.
func checkTranscripts(ctx context.Context, p preparer) (found []string, err error) {
	const q = `
		SELECT ` + eventColumns + ` FROM events
		WHERE kind IN ('assistant', 'tool_start', 'tool_result') ORDER BY session, seq`
	stmt, err := p.prepared(ctx, q)
	if err != nil {
		return nil, explain(err)
	}
	rows, err := stmt.QueryContext(ctx)
	if err != nil {
		return nil, explain(err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()

	var at session.ID
	starts := map[string]int{} // by call that was made
	billed := map[session.ID]pipeline.Usage{}
	for rows.Next() && len(found) < maxFound {
		e, err := scanEvent(rows)
		if err != nil {
			return nil, explain(err)
		}
		if e.Session != at {
			at = e.Session
			clear(starts)
		}
		switch d := e.Data.(type) {
		case *session.Assistant:
			billed[at] = add(billed[at], usageOf(e, d).sum)
			for _, c := range d.Calls {
				starts[c.ID] = 0 // some models use an id again
			}
		case *session.ToolStart:
			if starts[d.CallID]++; starts[d.CallID] > 1 {
				found = append(found, fmt.Sprintf("event %d of %s starts call %s again", e.Seq, at, d.CallID))
			}
		case *session.ToolResult:
			if _, ok := starts[d.CallID]; !ok {
				found = append(found, fmt.Sprintf("event %d of %s is the result of call %s, which nobody made", e.Seq, at, d.CallID))
			}
		}
	}
	if err := rows.Err(); err != nil {
		return nil, explain(err)
	}
	if len(found) == maxFound {
		return found, nil // the sums are of half the events
	}
	sums, err := all(ctx, p, scanSession, selectSession+`ORDER BY id`)
	if err != nil {
		return nil, err
	}
	for _, s := range sums {
		if b := billed[s.ID]; b != s.Usage && len(found) < maxFound {
			found = append(found, fmt.Sprintf("session %s was billed %+v, its events say %+v", s.ID, s.Usage, b))
		}
	}
	return found, nil
}

// Stale returns a sentence for everything that is open and was due before then, at
// most 100.
func (db *DB) Stale(ctx context.Context, before time.Time) ([]string, error) {
	const q = `
		SELECT 'message ' || message_id || ' of ' || channel || ' is ' || state FROM inbox
		WHERE state IN ('received', 'waiting') AND received_at < $1
		UNION ALL
		SELECT 'run ' || id || ' is not over' FROM runs WHERE ended_at = 0 AND started_at < $1
		UNION ALL
		SELECT 'approval ' || id || ' of run ' || run || ' is open' FROM approvals
		WHERE state = 'open' AND expires_at < $1 AND expires_at <> 0
		UNION ALL
		SELECT 'delivery ' || id || ' to ' || channel || ' ' || room || ' is ' || state FROM outbox
		WHERE state IN ('pending', 'sending', 'ambiguous') AND next_at < $1
		LIMIT $2`
	return all(ctx, db, scanString, q, micros(before), maxFound)
}
