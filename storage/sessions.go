package storage

import (
	"context"
	"errors"
	"strings"

	"trill/adapters"
	"trill/engine/session"
	"trill/pipeline"
)

// putSession moves a session's row on by a stretch, or creates it; ErrConflict
// when the stretch does not follow what is there.
func putSession(ctx context.Context, t *tx, s *stretch, from origin) error {
	var u pipeline.Usage
	for _, r := range s.usage {
		u = add(u, r.sum)
	}
	first := s.events[0]
	if first.Seq > 1 {
		const q = `
			UPDATE sessions SET
				last_seq = $3, updated_at = $4,
				title = CASE WHEN title = '' THEN $5 ELSE title END,
				context_from = CASE WHEN $6 > 0 THEN $6 ELSE context_from END,
				calls = calls + $7, input = input + $8, cached_input = cached_input + $9, output = output + $10,
				last_input = CASE WHEN $7 > 0 THEN $11 ELSE last_input END
			WHERE id = $1 AND last_seq = $2`
		n, err := t.exec(ctx, q, string(s.id), first.Seq-1, s.last, micros(s.updated), s.title, s.trim,
			u.Calls, u.Input, u.CachedInput, u.Output, u.LastInput)
		if err == nil && n == 0 {
			return conflict(s.id, first.Seq)
		}
		return err
	}
	const q = `
		INSERT INTO sessions (id, channel, room, thread, project, title, last_seq, context_from, created_at, updated_at,
			calls, input, cached_input, output, last_input)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
		ON CONFLICT (id) DO NOTHING`
	n, err := t.exec(ctx, q, string(s.id), from.key.Channel, from.key.Room, from.key.Thread, from.project, s.title,
		s.last, max(s.trim, 1), micros(first.Time), micros(s.updated),
		u.Calls, u.Input, u.CachedInput, u.Output, u.LastInput)
	if err == nil && n == 0 {
		return conflict(s.id, first.Seq)
	}
	return err
}

func putThread(ctx context.Context, t *tx, th pipeline.Thread) error {
	const q = `
		INSERT INTO threads (channel, room, thread, session, project)
		VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (channel, room, thread)
		DO UPDATE SET session = excluded.session, project = excluded.project`
	_, err := t.exec(ctx, q, th.Key.Channel, th.Key.Room, th.Key.Thread, string(th.Session), th.Project)
	return err
}

const selectThread = `
	SELECT channel, room, thread, session, project FROM threads
	WHERE channel = $1 AND room = $2 AND thread = $3`

func scanThread(s scanner) (t pipeline.Thread, err error) {
	return t, s.Scan(&t.Key.Channel, &t.Key.Room, &t.Key.Thread, &t.Session, &t.Project)
}

// Thread implements [pipeline.Store].
func (db *DB) Thread(ctx context.Context, key adapters.ThreadKey) (pipeline.Thread, error) {
	return one(ctx, db, scanThread, selectThread, key.Channel, key.Room, key.Thread)
}

// ThreadOf implements [pipeline.Store].
func (db *DB) ThreadOf(ctx context.Context, ch adapters.Channel, room adapters.RoomID, q adapters.Quote) (adapters.ThreadID, error) {
	thread := func(s scanner) (t adapters.ThreadID, err error) { return t, s.Scan(&t) }
	const received = `SELECT thread FROM inbox WHERE message_id = $1 AND channel = $2 AND room = $3`
	t, err := one(ctx, db, thread, received, q.ID, ch, room)
	if !errors.Is(err, pipeline.ErrNotFound) || !q.Sender.Self {
		return t, err
	}
	const sent = `
		SELECT thread FROM (
			SELECT thread, text, ord FROM outbox WHERE channel = $1 AND room = $2 ORDER BY ord DESC LIMIT 500
		) AS newest
		WHERE text = $3 ORDER BY ord DESC LIMIT 1`
	return one(ctx, db, thread, sent, ch, room, strings.TrimSpace(q.Text))
}

const selectSession = `
	SELECT id, channel, room, thread, project, title, last_seq, created_at, updated_at,
		calls, input, cached_input, output, last_input,
		EXISTS (SELECT 1 FROM runs WHERE runs.session = sessions.id AND runs.ended_at = 0)
	FROM sessions `

func scanSession(s scanner) (i pipeline.SessionInfo, err error) {
	var created, updated int64
	u := &i.Usage
	err = s.Scan(&i.ID, &i.Key.Channel, &i.Key.Room, &i.Key.Thread, &i.Project, &i.Title, &i.Events, &created, &updated,
		&u.Calls, &u.Input, &u.CachedInput, &u.Output, &u.LastInput, &i.Running)
	i.CreatedAt, i.UpdatedAt = fromMicros(created), fromMicros(updated)
	return i, err
}

// Sessions implements [pipeline.Store].
func (db *DB) Sessions(ctx context.Context, room *adapters.ThreadKey, limit, offset int) ([]pipeline.SessionInfo, error) {
	if room != nil {
		const q = selectSession + `
			WHERE channel = $1 AND room = $2
			ORDER BY updated_at DESC, id DESC LIMIT $3 OFFSET $4`
		return all(ctx, db, scanSession, q, room.Channel, room.Room, limit, offset)
	}
	const q = selectSession + `ORDER BY updated_at DESC, id DESC LIMIT $1 OFFSET $2`
	return all(ctx, db, scanSession, q, limit, offset)
}

// Session implements [pipeline.Store].
func (db *DB) Session(ctx context.Context, id session.ID) (pipeline.SessionInfo, error) {
	const q = selectSession + `WHERE id = $1`
	i, err := one(ctx, db, scanSession, q, id)
	if errors.Is(err, pipeline.ErrNotFound) {
		err = session.ErrNotFound
	}
	return i, err
}
