package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"trill/pipeline"
	"trill/storage"
)

type outboxCmd struct {
	List  outboxListCmd  `cmd:"" help:"List outgoing messages, the newest first."`
	Retry outboxRetryCmd `cmd:"" help:"Send a held or rejected message again, and lift the block of its room."`
}

type outboxListCmd struct {
	State string `enum:",pending,sending,ambiguous,sent,held,rejected,dropped" default:"" help:"Only those in this state: pending, sending, ambiguous, sent, held, rejected, dropped."`
	Limit int    `default:"20" help:"How many."`
	JSON  bool   `name:"json" help:"Print JSON."`
}

func (c *outboxListCmd) Run(e *env) error {
	return e.read(func(_ *Config, db *storage.DB) error {
		list, err := db.Deliveries(e.ctx, pipeline.DeliveryState(c.State), c.Limit)
		if err != nil {
			return err
		}
		blocks, err := db.Blocks(e.ctx)
		if err != nil {
			return err
		}
		if c.JSON {
			return printJSON(e.out, map[string]any{"deliveries": list, "blocks": blocks})
		}
		for _, b := range blocks {
			fmt.Fprintf(e.out, "Blocked: %s/%s since %s: %s\n", b.Channel, b.Room, b.Since.Local().Format(time.DateTime), b.Reason)
		}
		if len(list) == 0 {
			fmt.Fprintln(e.out, "There are no such messages.")
			return nil
		}
		t := newTable(e.out, "ID", "STATE", "KIND", "ROOM", "AGE", "TRIES", "TEXT", "ERROR")
		for _, d := range list {
			t.row(fmt.Sprint(d.ID), string(d.State), string(d.Kind), fmt.Sprintf("%s/%s", d.Target.Key.Channel, d.Target.Key.Room),
				age(time.Since(d.CreatedAt)), fmt.Sprint(d.Attempts), strings.Join(strings.Fields(d.Text), " "), d.Error)
		}
		return t.flush()
	})
}

type outboxRetryCmd struct {
	ID int64 `arg:"" help:"The message's id, from bot outbox list."`
}

func (c *outboxRetryCmd) Run(e *env) error {
	cfg, err := e.load()
	if err != nil {
		return err
	}
	db, err := storage.Open(e.ctx, storage.Config{Dir: cfg.Bot.DataDir}, discardLog())
	if errors.Is(err, storage.ErrInUse) { // the service runs: it has to do it
		err = c.tell(e.ctx, cfg)
		if err == nil {
			fmt.Fprintf(e.out, "Message %d is being sent.\n", c.ID)
		}
		return err
	}
	if err != nil {
		return err
	}
	_, err = db.RetryDelivery(e.ctx, pipeline.DeliveryID(c.ID), time.Now().UTC())
	switch {
	case errors.Is(err, pipeline.ErrNotFound):
		err = fmt.Errorf("no message %d; bot outbox list shows them", c.ID)
	case errors.Is(err, pipeline.ErrGone):
		err = fmt.Errorf("message %d is sent already, or on its way", c.ID)
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return err
	}
	fmt.Fprintf(e.out, "Message %d is sent when the service starts.\n", c.ID)
	return nil
}

// tell asks the running service.
func (c *outboxRetryCmd) tell(ctx context.Context, cfg *Config) error {
	token, err := apiToken(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	url := fmt.Sprintf("http://%s/api/outbox/%d/retry", cfg.Server.Listen, c.ID)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("the service runs but does not answer: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	var refusal struct{ Error string }
	if err := json.NewDecoder(io.LimitReader(resp.Body, 4096)).Decode(&refusal); err != nil || refusal.Error == "" {
		refusal.Error = resp.Status
	}
	return fmt.Errorf("message %d: %s", c.ID, refusal.Error)
}
