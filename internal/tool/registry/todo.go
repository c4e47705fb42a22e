package registry

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/text"
)

const (
	maxItems = 100 // of a plan that a model can keep in mind, with room
	maxItem  = 500 // bytes: a sentence or two; an item is no document
	// maxChanges bounds what a result repeats of the items, which the model has just written.
	maxChanges = 20
)

// States of an item.
const (
	pending    = "pending"
	inProgress = "in_progress"
	done       = "done"
)

// todo keeps a plan. The list is kept in the log, as the input of the newest call.
func todo() Tool {
	return Tool{
		Name:     "todo",
		Optional: true,
		Description: "Keep the list of what is to be done. Each call replaces the whole list; the result says what " +
			"changed. " +
			"Use it for work of several steps: write the steps down before you start, set one to in_progress while " +
			"you work on it, " +
			"and to done as soon as it is. The user sees how far you are.",
		Class: outboard.ClassPure,
		Place: InControl,
		Fields: []Field{{Name: "items", Kind: List, Required: true, max: maxItems,
			about: "All items, in the order of the work.", of: []Field{
				{Name: "text", Kind: Text, Required: true, max: maxItem,
					about: "What is to be done, in at most 500 bytes. No two items have the same text."},
				{Name: "status", Kind: Text, Required: true, options: []string{pending, inProgress, done},
					about: "How far it is."},
			}}},
		check: func(a args) error {
			items, _ := a["items"].([]args)
			seen := map[string]int{}
			for i, item := range items {
				if first, ok := seen[item.text("text")]; ok {
					return fmt.Errorf("items[%d] has the same text as items[%d]", i, first)
				}
				seen[item.text("text")] = i
			}
			return nil
		},
		title: func(a args) string {
			entries, _ := a["items"].([]any)
			var items []item
			for _, e := range entries {
				entry, _ := e.(map[string]any)
				items = append(items, item{args(entry).text("text"), args(entry).text("status")})
			}
			return progress(items)
		},
		Run: func(input, last outboard.Raw) (string, error) {
			is, err := itemsOf(input)
			if err != nil || last == nil {
				return progress(is), err
			}
			was, err := itemsOf(last)
			if err != nil {
				return progress(is), nil // of a list that another version wrote
			}
			return progress(is) + "\n" + changes(was, is), nil
		},
	}
}

// item is one entry of the list.
type item struct {
	Text   string `json:"text"`
	Status string `json:"status"`
}

func itemsOf(input outboard.Raw) ([]item, error) {
	var in struct {
		Items []item `json:"items"`
	}
	err := json.Unmarshal(input, &in)
	return in.Items, err
}

// progress is how far a list is, in one line: what is done, and the item that comes next.
func progress(items []item) string {
	finished, next := 0, ""
	for _, i := range items {
		switch {
		case i.Status == done:
			finished++
		case next == "", i.Status == inProgress && !strings.HasPrefix(next, inProgress):
			next = i.Status + " " + i.Text
		}
	}
	line := fmt.Sprintf("%d of %d done", finished, len(items))
	if _, name, ok := strings.Cut(next, " "); ok {
		line += ": " + name
	}
	return line
}

// changes lists the differences of two lists, one in a line.
func changes(was, is []item) string {
	before := map[string]string{}
	for _, i := range was {
		before[i.Text] = i.Status
	}
	var lines []string
	add := func(what string, i item) { lines = append(lines, what+": "+text.Clip(i.Text, maxQuoted)) }
	for _, i := range is {
		status, known := before[i.Text]
		delete(before, i.Text)
		if !known {
			add("added, "+i.Status, i)
		} else if status != i.Status {
			add("now "+i.Status, i)
		}
	}
	for _, i := range was {
		if status, removed := before[i.Text]; removed {
			add("removed, was "+status, i)
		}
	}
	if n := len(lines) - maxChanges; n > 0 {
		lines = append(lines[:maxChanges], fmt.Sprintf("and %d %s", n, plural(n, "other change")))
	}
	if len(lines) == 0 {
		return "nothing changed"
	}
	return strings.Join(lines, "\n")
}
