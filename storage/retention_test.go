package storage_test

import (
	"fmt"
	"testing"
	"time"

	"trill/adapters"
	"trill/pipeline"
	"trill/storage"
)

func TestOldIgnoredMessagesAreRemoved(t *testing.T) {
	db := open(t, storage.Config{Dir: t.TempDir()})
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	const days, each = 60, 30
	var rows []pipeline.InboxRow
	for day := range days {
		for i := range each {
			r := pipeline.InboxRow{
				State: pipeline.Ignored, ReceivedAt: now.AddDate(0, 0, day-days+1),
				Message: adapters.InboundMessage{Channel: "chat", ID: adapters.MessageID(fmt.Sprintf("%d/%d", day, i)), Room: "room"},
			}
			if i == 0 {
				r.State = pipeline.Received
			}
			rows = append(rows, r)
		}
	}
	if _, err := db.Accept(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	n, err := db.Prune(t.Context(), now.AddDate(0, 0, -30))
	if want := int64(29 * (each - 1)); err != nil || n != want {
		t.Errorf("removed %d, %v; want %d", n, err, want)
	}
	ids, err := db.Accept(t.Context(), rows)
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		gone := rows[i].State == pipeline.Ignored && rows[i].ReceivedAt.Before(now.AddDate(0, 0, -30))
		if (id != 0) != gone {
			t.Errorf("row %d of %s, %s: known %v", i, rows[i].ReceivedAt.Format(time.DateOnly), rows[i].State, id == 0)
		}
	}
	if n, err := db.Prune(t.Context(), now.AddDate(1, 0, 0)); err != nil || n != days*(each-1)-1 {
		t.Errorf("removed %d, %v; want all ignored but the newest row", n, err)
	}
}
