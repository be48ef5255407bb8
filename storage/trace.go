package storage

import (
	"context"
	"errors"
	"strings"

	"trill/adapters"
	"trill/pipeline"
)

// maxTraces bounds what one look finds.
const maxTraces = 20

// Trace implements [pipeline.Store].
func (db *DB) Trace(ctx context.Context, id adapters.MessageID) ([]pipeline.Trace, error) {
	const q = `SELECT ` + inboxColumns + ` FROM inbox WHERE message_id = $1 ORDER BY id`
	rows, err := all(ctx, db, scanInbox, q, id)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 && id != "" {
		// The end of an id of a message or a run: what people and apologies
		// show. It reads the whole index, for a person who waits.
		const q = `
			SELECT ` + inboxColumns + ` FROM inbox
			WHERE message_id LIKE '%/' || $1 OR run LIKE '%' || $1 ORDER BY id DESC LIMIT $2`
		like := strings.NewReplacer("%", "", "_", "").Replace(string(id))
		if rows, err = all(ctx, db, scanInbox, q, like, maxTraces); err != nil {
			return nil, err
		}
	}
	var traces []pipeline.Trace
	for _, r := range rows {
		tr := pipeline.Trace{Row: r}
		if r.Run != "" {
			run, err := db.Run(ctx, r.Run)
			if err != nil && !errors.Is(err, pipeline.ErrNotFound) {
				return nil, err
			}
			if err == nil {
				tr.Run = &run
			}
		}
		const q = `
			SELECT ` + deliveryColumns + ` FROM outbox
			WHERE id IN (
				SELECT id FROM outbox WHERE inbox = $1 AND inbox <> 0
				UNION
				SELECT id FROM outbox WHERE run = $2 AND run <> ''
			)
			ORDER BY channel, room, ord`
		if tr.Deliveries, err = all(ctx, db, scanDelivery, q, r.ID, r.Run); err != nil {
			return nil, err
		}
		traces = append(traces, tr)
	}
	return traces, nil
}

// Depth implements [pipeline.Store].
func (db *DB) Depth(ctx context.Context) (pipeline.Depth, error) {
	d := pipeline.Depth{Outbox: map[pipeline.DeliveryState]int64{}}
	const q = `
		SELECT
			(SELECT COUNT(*) FROM inbox WHERE state IN ('received', 'waiting')),
			(SELECT COALESCE(MIN(received_at), 0) FROM inbox WHERE state IN ('received', 'waiting')),
			(SELECT COUNT(*) FROM runs WHERE ended_at = 0),
			(SELECT COUNT(*) FROM approvals WHERE state = 'open')`
	if _, err := one(ctx, db, func(s scanner) (struct{}, error) {
		var oldest int64
		err := s.Scan(&d.Inbox, &oldest, &d.Runs, &d.Approvals)
		d.InboxOldest = fromMicros(oldest)
		return struct{}{}, err
	}, q); err != nil {
		return d, err
	}
	const states = `
		SELECT state, COUNT(*) FROM outbox
		WHERE state <> 'sent' AND state IN ('pending', 'sending', 'ambiguous', 'held') GROUP BY state`
	_, err := all(ctx, db, func(s scanner) (struct{}, error) {
		var state pipeline.DeliveryState
		var n int64
		err := s.Scan(&state, &n)
		d.Outbox[state] = n
		return struct{}{}, err
	}, states)
	return d, err
}
