package storage

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"trill/adapters"
	"trill/engine/message"
	"trill/engine/session"
)

// origin is what a new session records of the thread it begins in.
type origin struct {
	key     adapters.ThreadKey
	project string
}

// stretch is consecutive events of one session, ready to be inserted, and what
// they change in the session's row.
type stretch struct {
	id      session.ID
	events  []session.Event
	data    []string
	title   string
	trim    int64 // where the prompt begins from now on; 0: as before
	usage   []usageRow
	last    int64 // Seq of the last event
	updated time.Time
}

// stretches checks that every session's events follow each other and encodes
// them.
func stretches(evs []session.Event) ([]*stretch, error) {
	var ss []*stretch
	byID := map[session.ID]*stretch{}
	for _, e := range evs {
		s := byID[e.Session]
		if s == nil {
			if e.Session == "" {
				return nil, fmt.Errorf("append event %d: it has no session", e.Seq)
			}
			s = &stretch{id: e.Session, last: e.Seq - 1}
			byID[e.Session] = s
			ss = append(ss, s)
		}
		if e.Seq != s.last+1 || e.Seq < 1 {
			return nil, conflict(e.Session, e.Seq)
		}
		data, err := encodeEvent(e.Data)
		if err != nil {
			return nil, fmt.Errorf("append event %d of %s: %w", e.Seq, e.Session, err)
		}
		s.last, s.updated = e.Seq, e.Time
		s.events, s.data = append(s.events, e), append(s.data, data)
		switch d := e.Data.(type) {
		case *session.User:
			if s.title == "" {
				s.title = titleOf(d.Text)
			}
		case *session.Assistant:
			s.usage = append(s.usage, usageOf(e, d))
		case *session.Trim:
			s.trim = d.From
		}
	}
	return ss, nil
}

func conflict(id session.ID, seq int64) error {
	return fmt.Errorf("append event %d of %s: %w", seq, id, session.ErrConflict)
}

// titleOf is the beginning of a text in one line.
func titleOf(text string) string {
	const long = 80
	line := strings.Join(strings.Fields(text), " ")
	if r := []rune(line); len(r) > long {
		line = strings.TrimSpace(string(r[:long-1])) + "…"
	}
	return line
}

// Append implements [session.Store].
func (db *DB) Append(ctx context.Context, evs ...session.Event) error {
	if len(evs) == 0 {
		return nil
	}
	ss, err := stretches(evs)
	if err != nil {
		return err
	}
	return db.write(ctx, func(ctx context.Context, t *tx) error {
		return appendEvents(ctx, t, ss, origin{})
	})
}

// appendEvents stores what stretches made. The sessions' rows go first: they say
// whether the events still fit.
func appendEvents(ctx context.Context, t *tx, ss []*stretch, from origin) error {
	const q = `INSERT INTO events (session, seq, run, at, kind, data) VALUES ($1, $2, $3, $4, $5, $6)`
	for _, s := range ss {
		if err := putSession(ctx, t, s, from); err != nil {
			return err
		}
		for i, e := range s.events {
			if _, err := t.exec(ctx, q, string(e.Session), e.Seq, string(e.Run), micros(e.Time), string(e.Kind), s.data[i]); err != nil {
				return err
			}
		}
		for _, u := range s.usage {
			if err := putUsage(ctx, t, u); err != nil {
				return err
			}
		}
	}
	return nil
}

const eventColumns = `session, seq, run, at, kind, data`

func scanEvent(s scanner) (e session.Event, err error) {
	var at int64
	var data []byte
	if err := s.Scan(&e.Session, &e.Seq, &e.Run, &at, &e.Kind, &data); err != nil {
		return e, err
	}
	e.Time = fromMicros(at)
	if e.Data, err = decodeEvent(e.Kind, data); err != nil {
		return e, fmt.Errorf("event %d of %s: %w", e.Seq, e.Session, err)
	}
	return e, nil
}

// Events implements [session.Store].
func (db *DB) Events(ctx context.Context, id session.ID, after int64, limit int) ([]session.Event, error) {
	const q = `
		SELECT ` + eventColumns + ` FROM events
		WHERE session = $1 AND seq > $2 ORDER BY seq LIMIT $3`
	if limit <= 0 {
		limit = 1<<31 - 1
	}
	return all(ctx, db, scanEvent, q, id, after, limit)
}

// Prompt implements [session.Store].
func (db *DB) Prompt(ctx context.Context, id session.ID) ([]session.Event, error) {
	const q = `
		SELECT ` + eventColumns + ` FROM events
		WHERE session = $1 AND seq >= (SELECT context_from FROM sessions WHERE id = $1)
		ORDER BY seq`
	return all(ctx, db, scanEvent, q, id)
}

// Last implements [session.Store].
func (db *DB) Last(ctx context.Context, id session.ID) (int64, error) {
	const q = `SELECT COALESCE((SELECT last_seq FROM sessions WHERE id = $1), 0)`
	return one(ctx, db, scanInt, q, id)
}

func scanInt(s scanner) (n int64, err error) { return n, s.Scan(&n) }

// storedCall is a call as it is stored. JSON would not keep arguments as the
// model wrote them, which may be no JSON at all, and the prompt has to be the
// same to the byte when it is made again; Raw has those that would change.
type storedCall struct {
	ID   string          `json:"id"`
	Tool string          `json:"tool"`
	Args json.RawMessage `json:"args,omitempty"`
	Raw  string          `json:"raw_args,omitempty"`
}

// storedAssistant hides the calls of the message it embeds.
type storedAssistant struct {
	*session.Assistant
	Calls []storedCall `json:"calls,omitempty"`
}

func encodeEvent(data any) (string, error) {
	if a, ok := data.(*session.Assistant); ok && len(a.Calls) > 0 {
		calls := make([]storedCall, len(a.Calls))
		for i, c := range a.Calls {
			calls[i] = storedCall{ID: c.ID, Tool: c.Tool}
			if encoded, err := encode(c.Args); err == nil && encoded == string(c.Args) {
				calls[i].Args = c.Args
			} else {
				calls[i].Raw = string(c.Args)
			}
		}
		data = storedAssistant{Assistant: a, Calls: calls}
	}
	return encode(data)
}

// encode is json.Marshal without the escapes that only HTML needs.
func encode(v any) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "", err
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

func decodeEvent(kind session.Kind, data []byte) (any, error) {
	if kind != session.KindAssistant {
		return session.Decode(kind, data)
	}
	s := storedAssistant{Assistant: new(session.Assistant)}
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, err
	}
	for _, c := range s.Calls {
		call := message.Call{ID: c.ID, Tool: c.Tool, Args: c.Args}
		if c.Raw != "" {
			call.Args = json.RawMessage(c.Raw)
		}
		s.Assistant.Calls = append(s.Assistant.Calls, call)
	}
	return s.Assistant, nil
}
