package storage_test

import (
	"log/slog"
	"testing"

	"trill/engine/session"
	"trill/engine/session/sessiontest"
	"trill/storage"
)

// open opens the database of a folder, which is closed with the test.
func open(t testing.TB, conf storage.Config) *storage.DB {
	t.Helper()
	db, err := storage.Open(t.Context(), conf, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return db
}

func TestTranscripts(t *testing.T) {
	sessiontest.Run(t, func(t *testing.T) session.Store { return open(t, storage.Config{Dir: t.TempDir()}) })
}
