package api

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"github.com/outboard-dev/outboard/internal/control"
)

// cursor is what a page token holds. It belongs to one list and one order: presented to another, it is refused.
type cursor struct {
	List  string `json:"l"`           // which list, with whatever filter must not change
	Order string `json:"o,omitempty"` // asc or desc
	After string `json:"a,omitempty"` // id (or version, or position) of the last row of the page before
	At    int64  `json:"t,omitempty"` // when that row was made, µs
	Back  bool   `json:"b,omitempty"` // towards the rows before After: a prev_page
	Seq   int64  `json:"s,omitempty"` // events: position in the log
	Sub   int    `json:"u,omitempty"` // events: how many wire events of that position were given
	Wait  int64  `json:"w,omitempty"` // events: position of the last queued input given
}

const pagePrefix = "page_"

// maxToken bounds what is decoded as a page token.
const maxToken = 1024

func (c cursor) token() *string {
	b, err := json.Marshal(c)
	if err != nil {
		panic("api: encoding a cursor: " + err.Error()) // strings and integers only
	}
	return new(pagePrefix + base64.RawURLEncoding.EncodeToString(b))
}

// parseCursor reads a page token that must be of the given list and order. "" is the first page.
func parseCursor(token, list, order string) (cursor, error) {
	first := cursor{List: list, Order: order}
	if token == "" {
		return first, nil
	}
	rest, ok := strings.CutPrefix(token, pagePrefix)
	if !ok || len(token) > maxToken {
		return first, badCursor()
	}
	b, err := base64.RawURLEncoding.DecodeString(rest)
	if err != nil {
		return first, badCursor()
	}
	var c cursor
	if json.Unmarshal(b, &c) != nil || c.List != list || c.Seq < 0 || c.Sub < 0 || c.Wait < 0 {
		return first, badCursor()
	}
	if c.Order != order {
		return first, bad("page: the cursor was made with order %s and cannot continue with %s", c.Order, order)
	}
	return c, nil
}

// within refuses created_at filters that leave out the row that the cursor stands on: such a page would be
// empty, and look like the end.
func (c cursor) within(t between) error {
	if c.At == 0 || t.holds(time.UnixMicro(c.At).UTC()) {
		return nil
	}
	return bad("page: the cursor is outside of created_at").
		WithHint("keep the filters of the first page, or begin without page")
}

func badCursor() error {
	return bad("page: not a cursor of this list").WithHint("use next_page of the previous response, unchanged")
}

// rows is one page request of a list that runs newest first.
type rows struct {
	list string
	page control.Page // one row more than asked for, to know whether another page follows
	at   time.Time    // when the cursor's row was made
	more bool         // rows may follow though the page is not full
}

// rows reads the parameters of such a list.
func (r *request) rows(list string, def, most int) (q rows, err error) {
	q.list = list
	if q.page.Limit, err = r.limit(def, most); err != nil {
		return q, err
	}
	q.page.Limit++
	c, err := parseCursor(r.query.Get("page"), list, "")
	if err != nil {
		return q, err
	}
	q.page.Cursor = c.After
	if c.At != 0 {
		q.at = time.UnixMicro(c.At).UTC()
	}
	if q.page.IncludeArchived, err = r.flag("include_archived"); err != nil {
		return q, err
	}
	t, err := r.between()
	if err != nil {
		return q, err
	}
	q.page.From, q.page.To = t.from, t.to
	return q, c.within(t)
}

// cut takes a page out of a whole list that is in memory, newest first: what was made before the cursor's row,
// which may be gone.
func cut[T any](q rows, all []T, row func(T) (string, time.Time)) []T {
	out := []T{}
	for _, v := range all {
		id, at := row(v)
		after := q.page.Cursor == "" || at.Before(q.at) || at.Equal(q.at) && id < q.page.Cursor
		if !after || at.Before(q.page.From) || !q.page.To.IsZero() && at.After(q.page.To) {
			continue
		}
		if out = append(out, v); len(out) == q.page.Limit {
			break
		}
	}
	return out
}

// pageOf encodes one page.
func pageOf[T, W any](q rows, list []T, row func(T) (string, time.Time), show func(T) W) listOut[W] {
	out := listOut[W]{Data: []W{}}
	if n := q.page.Limit - 1; len(list) > n || q.more {
		list = list[:min(n, len(list))]
		id, at := row(list[len(list)-1])
		out.NextPage = cursor{List: q.list, After: id, At: at.UnixMicro()}.token()
	}
	for _, v := range list {
		out.Data = append(out.Data, show(v))
	}
	return out
}
