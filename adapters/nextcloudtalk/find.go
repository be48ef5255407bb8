package nextcloudtalk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"trill/adapters"
)

const (
	pageSize = 200 // messages; the server gives no more
	maxPages = 50  // requests that one search may make
	// maxPage is how many bytes of a page are read. Its messages can be much
	// longer than that together, so a page that is too large is asked for again
	// in smaller ones.
	maxPage = 8 << 20
	// clockSkew is how far the clock of the server may be behind ours.
	clockSkew = time.Minute
	// loginPause is how long the account is left alone after its password was
	// refused: the server counts that as an attack on it.
	loginPause = 30 * time.Minute
	// maxWarned is how many rooms are remembered as complained about.
	maxWarned = 1000
)

// Find reads back what was posted in the room, with the account in the
// configuration, until it is certain. An account that cannot see the room is as
// none: the error wraps [adapters.ErrCannotLook], and is logged once per room,
// because whoever settles the matter without looking has nothing to report.
//
// A message is known by its key, which nobody else can know before it is posted:
// a bot that used it is us. What the server has not finished storing is not seen.
func (a *Adapter) Find(ctx context.Context, m adapters.OutboundMessage, since time.Time) (adapters.MessageID, bool, error) {
	if a.conf.Account == "" {
		return "", false, adapters.ErrCannotLook
	}
	id, found, err := a.look(ctx, m, since.Add(-clockSkew))
	if err != nil {
		err = fmt.Errorf("look for message: %w", err)
	}
	if a.blind.note(m.Room, errors.Is(err, adapters.ErrCannotLook)) {
		a.log.WarnContext(ctx, "cannot look for answers in this room", "room", m.Room, "err", err)
	}
	return id, found, err
}

// look goes back in time, page by page.
func (a *Adapter) look(ctx context.Context, m adapters.OutboundMessage, since time.Time) (adapters.MessageID, bool, error) {
	switch {
	case !isToken(string(m.Room)):
		return "", false, errors.New("no room of this server")
	case m.Key == "":
		return "", false, fmt.Errorf("it has no key: %w", adapters.ErrCannotLook)
	}
	var offset int64
	size := pageSize
	for range maxPages {
		p, err := a.page(ctx, m.Room, offset, size)
		if errors.Is(err, errTooLarge) && size > 1 {
			size = (size + 7) / 8
			continue
		}
		if err != nil {
			return "", false, err
		}
		// The page is read to its end, whatever the times in it: the clocks of
		// a server's machines differ.
		covered := p.end
		for _, c := range p.messages {
			if c.ActorType == "bots" && c.ReferenceID == m.Key {
				return adapters.MessageID(strconv.FormatInt(c.ID, 10)), true, nil
			}
			covered = covered || time.Unix(c.Timestamp, 0).Before(since)
		}
		switch {
		case covered:
			return "", false, nil
		case p.next <= 0, offset != 0 && p.next >= offset:
			return "", false, errors.New("the server does not say where its answer ended")
		}
		offset = p.next
	}
	return "", false, fmt.Errorf("%d requests did not reach back to %s", maxPages, since.UTC().Format(time.RFC3339))
}

// page is a piece of a room's history, the newest message first. What the account
// may not see is left out, so a page can be empty.
type page struct {
	messages []chatMessage
	next     int64 // where the next, older page starts
	end      bool  // there is nothing older
}

type chatMessage struct {
	ID          int64  `json:"id"`
	ActorType   string `json:"actorType"`
	Timestamp   int64  `json:"timestamp"` // seconds
	ReferenceID string `json:"referenceId"`
}

// page reads what is older than the message offset; 0 is the newest.
func (a *Adapter) page(ctx context.Context, room adapters.RoomID, offset int64, size int) (page, error) {
	query := url.Values{
		"lookIntoFuture":          {"0"},
		"limit":                   {strconv.Itoa(size)},
		"includeLastKnown":        {"0"},
		"setReadMarker":           {"0"}, // nobody has read it
		"noStatusUpdate":          {"1"},
		"markNotificationsAsRead": {"0"},
	}
	if offset > 0 {
		query.Set("lastKnownMessageId", strconv.FormatInt(offset, 10))
	}
	var p page
	code, header, err := a.asAccount(ctx, "/apps/spreed/api/v1/chat/"+string(room)+"?"+query.Encode(), &p.messages)
	switch code {
	case http.StatusNotModified:
		p.end = true
		return p, nil
	case http.StatusForbidden, http.StatusNotFound:
		err = fmt.Errorf("%w: the account %q is not in this room: add it there: %w", err, a.conf.Account, adapters.ErrCannotLook)
	case http.StatusPreconditionFailed:
		err = fmt.Errorf("%w: the lobby keeps the account %q out: make it a moderator of the room: %w", err, a.conf.Account, adapters.ErrCannotLook)
	}
	if err != nil {
		return page{}, err
	}
	p.next, _ = strconv.ParseInt(header.Get("X-Chat-Last-Given"), 10, 64) // 0: it does not say
	return p, nil
}

var (
	errTooLarge = errors.New("the answer is too large")
	errLogin    = fmt.Errorf("the server refuses account or app_password: make a new app password in the account's settings, under Security: %w", adapters.ErrCannotLook)
)

// asAccount asks the server something in the name of the account, and decodes the
// answer into data. The code is Nextcloud's own, 0 when it is not Nextcloud that
// answered; 304 is no error.
func (a *Adapter) asAccount(ctx context.Context, path string, data any) (code int, header http.Header, err error) {
	if a.blind.loginRefused(time.Now()) {
		return 0, nil, errLogin
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.ocs+path, nil)
	if err != nil {
		return 0, nil, err
	}
	a.address(req)
	req.SetBasicAuth(a.conf.Account, a.conf.AppPassword.Reveal())
	resp, err := a.client.Do(req)
	if err != nil {
		return 0, nil, plain(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
	switch {
	case err != nil:
		return 0, nil, fmt.Errorf("the answer broke off: %w", plain(err))
	case resp.StatusCode == http.StatusNotModified:
		return resp.StatusCode, resp.Header, nil
	case resp.StatusCode == http.StatusUnauthorized:
		a.blind.refuseLogin(time.Now().Add(loginPause))
		return resp.StatusCode, nil, errLogin
	case len(raw) > maxPage:
		return 0, nil, errTooLarge
	}
	var body struct {
		OCS struct {
			Meta struct {
				Code int `json:"statuscode"`
			} `json:"meta"`
			Data json.RawMessage `json:"data"`
		} `json:"ocs"`
	}
	ocs := json.Unmarshal(raw, &body) == nil && body.OCS.Meta.Code != 0
	code = worse(resp.StatusCode, body.OCS.Meta.Code)
	status := fmt.Errorf("%d %s", code, http.StatusText(code))
	switch {
	case !ocs && code == http.StatusOK:
		return 0, nil, errors.New("the answer is not Nextcloud's: something in between, such as a login page, took the request")
	case !ocs:
		return 0, nil, status
	case code != http.StatusOK:
		return code, nil, status
	}
	if err := json.Unmarshal(body.OCS.Data, data); err != nil {
		return 0, nil, fmt.Errorf("the answer is of another kind: %w", err)
	}
	return code, resp.Header, nil
}

// blind is what the account could not see.
type blind struct {
	mu     sync.Mutex                   // guards what follows
	warned map[adapters.RoomID]struct{} // rooms that were complained about
	until  time.Time                    // when a refused login may be tried again
}

// note remembers whether a room could be looked into, and reports whether that it
// could not is news.
func (b *blind) note(room adapters.RoomID, failed bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !failed {
		delete(b.warned, room)
		return false
	}
	if _, ok := b.warned[room]; ok || len(b.warned) >= maxWarned {
		return false
	}
	if b.warned == nil {
		b.warned = make(map[adapters.RoomID]struct{})
	}
	b.warned[room] = struct{}{}
	return true
}

func (b *blind) refuseLogin(until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until = until
}

func (b *blind) loginRefused(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return now.Before(b.until)
}

// checkAccount reports whether the account for looking can be used.
func (a *Adapter) checkAccount(ctx context.Context) adapters.Finding {
	f := adapters.Finding{What: "account"}
	a.blind.refuseLogin(time.Time{}) // whoever asks may have put it right
	var user struct {
		ID string `json:"id"`
	}
	_, _, err := a.asAccount(ctx, "/cloud/user", &user)
	switch {
	case errors.Is(err, errLogin):
		f.Detail = fmt.Sprintf("the server refuses account %q with this app_password", a.conf.Account)
		f.Advice = "make a new app password in the account's settings, under Security, and set app_password to it"
	case err != nil:
		f.Detail, f.Advice = err.Error(), "try again, and look at the server's log"
	default:
		f.OK = true
		f.Detail = fmt.Sprintf("answers are looked for as %q", clean(user.ID, maxName))
		f.Advice = "add this account to every room the bot is in: elsewhere it sees nothing"
	}
	return f
}
