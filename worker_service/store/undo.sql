-- Undoes an action.

-- name: undoable_verb
SELECT verb FROM worker_action
 WHERE id = :action_id AND undone_at IS NULL AND verb IN ('cancel', 'retry', 'priority', 'dismiss');

-- name: action_items
SELECT item_id, left_as, priority_before FROM worker_action_item WHERE action_id = :action_id ORDER BY item_id;

-- name: undone
UPDATE worker_action SET undone_at = :now, undone_by = :actor WHERE id = :action_id;
