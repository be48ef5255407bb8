package storage

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"trill/adapters"
	"trill/engine/session"
	"trill/pipeline"
)

// facts is what is known about a message besides its columns, and content what
// people wrote in it. They are apart so that the second can be erased.
type facts struct {
	Platform  adapters.Platform  `json:"platform,omitempty"`
	ReplyTo   adapters.MessageID `json:"reply_to,omitempty"`
	Kind      adapters.Kind      `json:"kind"`
	Direct    bool               `json:"direct,omitempty"`
	Name      string             `json:"name,omitempty"`
	Bot       bool               `json:"bot,omitempty"`
	Self      bool               `json:"self,omitempty"`
	Mentioned bool               `json:"mentioned,omitempty"`
	SentAt    int64              `json:"sent_at,omitempty"`
}

type content struct {
	Text        string           `json:"text,omitempty"`
	RoomName    string           `json:"room_name,omitempty"`
	Quote       *quoteJSON       `json:"quote,omitempty"`
	Attachments []attachmentJSON `json:"attachments,omitempty"`
}

type quoteJSON struct {
	ID     adapters.MessageID `json:"id,omitempty"`
	Person adapters.PersonID  `json:"person,omitempty"`
	Name   string             `json:"name,omitempty"`
	Bot    bool               `json:"bot,omitempty"`
	Self   bool               `json:"self,omitempty"`
	Text   string             `json:"text,omitempty"`
}

type attachmentJSON struct {
	ID   string `json:"id,omitempty"`
	Name string `json:"name,omitempty"`
	MIME string `json:"mime,omitempty"`
	Size int64  `json:"size,omitempty"`
	Link string `json:"link,omitempty"`
}

// packed is an inbox row ready to be inserted.
type packed struct {
	pipeline.InboxRow
	digest         any // nil when there is none
	facts, content string
}

func pack(r pipeline.InboxRow) (packed, error) {
	m := &r.Message
	if m.Channel == "" || m.ID == "" {
		return packed{}, fmt.Errorf("accept message of channel %q: it has no id", m.Channel)
	}
	if r.State == "" {
		r.State = pipeline.Received
	}
	p := packed{InboxRow: r}
	if m.Digest != "" {
		p.digest = m.Digest
	}
	f, err := json.Marshal(facts{
		Platform: m.Platform, ReplyTo: m.ReplyTo, Kind: m.Kind, Direct: m.Direct, Name: m.Sender.Name,
		Bot: m.Sender.Bot, Self: m.Sender.Self, Mentioned: m.Mentioned, SentAt: micros(m.SentAt),
	})
	if err != nil {
		return packed{}, err
	}
	p.facts = string(f)
	if r.State == pipeline.Ignored {
		return p, nil // what was not for us is not kept
	}
	c := content{Text: m.Text, RoomName: m.RoomName}
	if q := m.Quote; q != nil {
		c.Quote = &quoteJSON{
			ID: q.ID, Person: q.Sender.ID, Name: q.Sender.Name, Bot: q.Sender.Bot, Self: q.Sender.Self, Text: q.Text,
		}
	}
	for _, a := range m.Attachments {
		c.Attachments = append(c.Attachments, attachmentJSON(a))
	}
	b, err := json.Marshal(c)
	p.content = string(b)
	return p, err
}

const inboxColumns = `id, channel, message_id, COALESCE(digest, ''), room, thread, person, state, reason, run,
	received_at, facts, content`

func scanInbox(s scanner) (r pipeline.InboxRow, err error) {
	m := &r.Message
	var received int64
	var fs, cs string
	if err := s.Scan(&r.ID, &m.Channel, &m.ID, &m.Digest, &m.Room, &m.Thread, &m.Sender.ID, &r.State, &r.Reason,
		&r.Run, &received, &fs, &cs); err != nil {
		return r, err
	}
	r.ReceivedAt = fromMicros(received)
	var f facts
	if err := json.Unmarshal([]byte(fs), &f); err != nil {
		return r, fmt.Errorf("inbox row %d: %w", r.ID, err)
	}
	m.Platform, m.ReplyTo, m.Kind, m.Direct, m.Mentioned = f.Platform, f.ReplyTo, f.Kind, f.Direct, f.Mentioned
	m.Sender.Name, m.Sender.Bot, m.Sender.Self, m.SentAt = f.Name, f.Bot, f.Self, fromMicros(f.SentAt)
	if cs == "" {
		return r, nil
	}
	var c content
	if err := json.Unmarshal([]byte(cs), &c); err != nil {
		return r, fmt.Errorf("inbox row %d: %w", r.ID, err)
	}
	m.Text, m.RoomName = c.Text, c.RoomName
	if q := c.Quote; q != nil {
		m.Quote = &adapters.Quote{
			ID: q.ID, Text: q.Text, Sender: adapters.Person{ID: q.Person, Name: q.Name, Bot: q.Bot, Self: q.Self},
		}
	}
	for _, a := range c.Attachments {
		m.Attachments = append(m.Attachments, adapters.Attachment(a))
	}
	return r, nil
}

// Accept implements [pipeline.Store]. It refuses with [ErrFull] as long as the
// disk is full.
func (db *DB) Accept(ctx context.Context, rows []pipeline.InboxRow) ([]pipeline.InboxID, error) {
	if err := db.Degraded(); err != nil {
		return nil, err
	}
	ps := make([]packed, len(rows))
	for i, r := range rows {
		p, err := pack(r)
		if err != nil {
			return nil, err
		}
		ps[i] = p
	}
	ids := make([]pipeline.InboxID, len(ps))
	err := db.write(ctx, func(ctx context.Context, t *tx) error {
		const q = `
			INSERT INTO inbox (channel, message_id, digest, room, thread, person, state, reason, run, received_at,
				facts, content)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
			ON CONFLICT DO NOTHING
			RETURNING id`
		for i := range ps {
			p, m := &ps[i], &ps[i].Message
			id, err := t.insert(ctx, q, string(m.Channel), string(m.ID), p.digest, string(m.Room), string(m.Thread),
				string(m.Sender.ID), string(p.State), p.Reason, string(p.Run), micros(p.ReceivedAt), p.facts, p.content)
			if err != nil {
				return err
			}
			ids[i] = pipeline.InboxID(id)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return ids, nil
}

// openRows is the open part of a thread's inbox, in order.
const openRows = `
	SELECT ` + inboxColumns + ` FROM inbox
	WHERE channel = $1 AND room = $2 AND thread = $3 AND state IN ('received', 'waiting')
	ORDER BY id`

// Open implements [pipeline.Store].
func (db *DB) Open(ctx context.Context, key adapters.ThreadKey) ([]pipeline.InboxRow, error) {
	return all(ctx, db, scanInbox, openRows, key.Channel, key.Room, key.Thread)
}

// OpenThreads implements [pipeline.Store].
func (db *DB) OpenThreads(ctx context.Context) ([]adapters.ThreadKey, error) {
	const q = `
		SELECT channel, room, thread FROM inbox WHERE state IN ('received', 'waiting')
		UNION
		SELECT channel, room, thread FROM runs WHERE ended_at = 0
		ORDER BY 1, 2, 3`
	return all(ctx, db, scanKey, q)
}

func scanKey(s scanner) (k adapters.ThreadKey, err error) {
	return k, s.Scan(&k.Channel, &k.Room, &k.Thread)
}

// Wait implements [pipeline.Store].
func (db *DB) Wait(ctx context.Context, id pipeline.InboxID) error {
	return db.write(ctx, func(ctx context.Context, t *tx) error {
		const q = `UPDATE inbox SET state = 'waiting' WHERE id = $1 AND state IN ('received', 'waiting')`
		return changed(t.exec(ctx, q, id))
	})
}

// changed turns an update that found no row into pipeline.ErrGone.
func changed(n int64, err error) error {
	if err == nil && n == 0 {
		return pipeline.ErrGone
	}
	return err
}

// closeRow ends an open inbox row.
func closeRow(ctx context.Context, t *tx, id pipeline.InboxID, state pipeline.InboxState, reason string, run session.RunID) error {
	const q = `
		UPDATE inbox SET state = $2, reason = $3, run = $4,
			content = CASE WHEN $2 = 'ignored' THEN '' ELSE content END
		WHERE id = $1 AND state IN ('received', 'waiting')`
	return changed(t.exec(ctx, q, id, string(state), reason, string(run)))
}

// Settle implements [pipeline.Store].
func (db *DB) Settle(ctx context.Context, s pipeline.Settle) error {
	switch s.State {
	case pipeline.Done, pipeline.Ignored, pipeline.Dead:
	default:
		return fmt.Errorf("settle inbox row %d: %q does not end it", s.Row, s.State)
	}
	ds, err := db.fill(s.Deliveries, s.At, "", s.Row)
	if err != nil {
		return err
	}
	return db.write(ctx, func(ctx context.Context, t *tx) error {
		if s.Decide != nil {
			if err := decide(ctx, t, *s.Decide, s.At); err != nil {
				return err
			}
		}
		if err := closeRow(ctx, t, s.Row, s.State, s.Reason, ""); err != nil {
			return err
		}
		if s.Thread != nil {
			if err := putThread(ctx, t, *s.Thread); err != nil {
				return err
			}
		}
		if s.Stop != "" {
			if err := stopRun(ctx, t, s.StopKey, s.Stop); err != nil {
				return err
			}
		}
		if err := enqueue(ctx, t, ds); err != nil {
			return err
		}
		if s.Audit != nil {
			return putAudit(ctx, t, *s.Audit, s.At)
		}
		return nil
	})
}

// orNow is at, or the time of now for callers that did not say when.
func orNow(at time.Time, now func() time.Time) time.Time {
	if at.IsZero() {
		return now()
	}
	return at
}
